"""The generator writes the recipes in `docs/ci/`; each recipe is valid for its CI system."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml
from kubernetes_validate import ValidationError, validate

from docs.generator.ci_recipes import FOLDER, recipes
from harness.provisioning.command import LocalRunner
from suites.docs.pages import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

_KUBERNETES = "1.31"
_MANIFESTS = sorted(path for path in recipes() if "/kubernetes-" in path)
_SCRIPTS = sorted(path for path in recipes() if path.endswith(".sh"))


def test_committed_recipes_match_the_generator() -> None:
    written = {
        path.relative_to(REPOSITORY).as_posix(): path.read_text()
        for path in (REPOSITORY / FOLDER).iterdir()
    }

    assert written == recipes(), "Run `python -m docs.generator`."


@pytest.mark.parametrize("path", _MANIFESTS)
def test_manifest_fits_the_schema_of_kubernetes(path: str) -> None:
    validate(yaml.safe_load(recipes()[path]), _KUBERNETES, strict=True)


def test_misspelt_key_of_a_manifest_is_refused() -> None:
    manifest = yaml.safe_load(recipes()[_MANIFESTS[0]])
    manifest["spec"]["completion"] = manifest["spec"].pop("completions")

    with pytest.raises(ValidationError):
        validate(manifest, _KUBERNETES, strict=True)


@pytest.mark.parametrize("path", _SCRIPTS)
def test_script_of_a_recipe_is_valid_in_a_posix_shell(path: str, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text(recipes()[path])

    result = LocalRunner().run(["sh", "-n", str(script)], timeout_s=10)

    assert result.ok, result.render()
