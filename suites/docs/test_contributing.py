"""Files that other tools read: CI pipelines, pre-commit's configuration, changelog fragments."""

from __future__ import annotations

import re
import sys

import check_jsonschema  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner

from harness.provisioning.command import LocalRunner
from suites.docs.pages import REPOSITORY

_CHECK_S = 60.0
_FRAGMENT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\.(feature|bugfix|doc|removal)\.md")
_NO_FRAGMENTS = frozenset({"README.md", "template.md.jinja"})

_SCHEMAS = {
    "github": "vendor.github-workflows",
    "gitlab": "vendor.gitlab-ci",
    "azure": "vendor.azure-pipelines",
    "buildkite": "vendor.buildkite",
}
PIPELINES = {
    ".github/workflows/test.yml": "vendor.github-workflows",
    ".github/workflows/nightly.yml": "vendor.github-workflows",
    ".github/workflows/publish.yml": "vendor.github-workflows",
    ".gitlab-ci.yml": "vendor.gitlab-ci",
    "azure-pipelines.yml": "vendor.azure-pipelines",
    **{
        f"docs/ci/{engine}-{variant}.yml": schema
        for engine, schema in _SCHEMAS.items()
        for variant in ("kvm", "tcg", *(("gpus",) if engine != "buildkite" else ()))
    },
}


def schema_errors(path: str, schema: str) -> str | None:
    """Return the errors that the installed schema finds in a pipeline, or None."""
    # The schema of Azure Pipelines has patterns that are invalid in Unicode mode.
    options = ["--regex-variant", "nonunicode", "--builtin-schema", schema]
    result = CliRunner().invoke(check_jsonschema.main, [*options, path])
    return None if result.exit_code == 0 else result.output


@pytest.mark.parametrize(("path", "schema"), PIPELINES.items())
def test_ci_pipeline_file_is_valid_by_its_schema(path: str, schema: str) -> None:
    assert schema_errors(str(REPOSITORY / path), schema) is None


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (".github/workflows/test.yml", "runs-on:", "run-on:"),
        (".gitlab-ci.yml", "script: ./dev docs", "scripts: ./dev docs"),
        ("azure-pipelines.yml", "timeoutInMinutes:", "timeoutInMinute:"),
    ],
)
def test_misspelt_key_of_a_pipeline_is_refused_by_its_schema(
    tmp_path_factory: pytest.TempPathFactory, path: str, old: str, new: str
) -> None:
    text = (REPOSITORY / path).read_text()
    assert old in text
    file = tmp_path_factory.mktemp("pipeline") / "pipeline.yml"
    file.write_text(text.replace(old, new))

    assert schema_errors(str(file), PIPELINES[path]) is not None


def test_configuration_of_pre_commit_is_valid() -> None:
    result = LocalRunner().run(
        [
            *(sys.executable, "-m", "pre_commit", "validate-config"),
            str(REPOSITORY / ".pre-commit-config.yaml"),
        ],
        timeout_s=_CHECK_S,
    )

    result.check("Checking .pre-commit-config.yaml")


def test_every_changelog_fragment_has_its_kind_in_its_file_name_and_ends_with_a_full_stop() -> (
    None
):
    files = [
        file for file in (REPOSITORY / "changelog").iterdir() if file.name not in _NO_FRAGMENTS
    ]

    for file in files:
        assert _FRAGMENT.fullmatch(file.name), f"'{file.name}' names no kind of change."
        assert file.read_text().strip().endswith("."), f"'{file.name}' does not end a sentence."


def test_release_notes_contain_every_fragment() -> None:
    result = LocalRunner().run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--dir", str(REPOSITORY)],
        timeout_s=_CHECK_S,
    )
    notes = " ".join(result.check("Rendering the changelog").stdout.split())

    for file in (REPOSITORY / "changelog").glob("*.*.md"):
        assert " ".join(file.read_text().split()) in notes, f"The notes lack '{file.name}'."
