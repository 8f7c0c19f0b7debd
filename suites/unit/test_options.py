"""The table of options: how values are converted, and which source overrides which."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BadInputError
from harness.options import OPTIONS, add_to_command, settings_from
from harness.settings import MachineDriver, MachineStart, Settings


def _settings(
    given: dict[str, Any] | None = None, ini: dict[str, Any] | None = None, **more: Any
) -> Settings:
    return settings_from((given or {}).get, (ini or {}).get, **more)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS.values():
        monkeypatch.delenv(option.variable or "HARNESS_ACCEPT_LICENCE", raising=False)


def test_empty_options_leave_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)

    assert _settings() == Settings()


def test_each_option_sets_a_field_of_the_settings() -> None:
    fields = [option.field for option in OPTIONS.values()]

    assert len({*fields}) == len(fields)
    assert {*fields} <= {*Settings.__dataclass_fields__}


def test_option_overrides_the_variable_and_the_variable_overrides_the_ini_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _settings({}, {"store": "ini"}).store == "ini"
    monkeypatch.setenv("HARNESS_STORE", "variable")
    assert _settings({}, {"store": "ini"}).store == "variable"
    assert _settings({"store": "option"}, {"store": "ini"}).store == "option"


def test_relative_path_in_an_ini_file_or_an_option_is_below_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "project"

    for given in (
        _settings({}, {"gpu_inventory": "a"}, root=root),
        _settings({"gpu_inventory": "a"}, root=root),
    ):
        assert given.gpu_inventory == root / "a"
    assert _settings({"gpu_inventory": "a"}).gpu_inventory == tmp_path / "a"


def test_option_text_is_converted_to_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    settings = _settings(
        {
            "machine_start": "cold",
            "images_dir": ["recipes"],
            "gpu_models": [tmp_path / "models"],
            "evidence_dir": "kept",
            "gpu_pool_dir": "pool",
            "gpu_inventory": "~/gpus.yaml",
            "accept_licence": ["one,two"],
            "timeout_multiplier": "3",
            "machine_driver": "libvirt",
            "bundle_limit_mib": 0,
        },
        {"images_dir": [Path("/shared")], "accept_licence": ["three"]},
        root=tmp_path,
    )

    assert settings.machine_start is MachineStart.COLD
    assert settings.image_folders == (Path("/shared"), tmp_path / "recipes")
    assert settings.gpu_models == (tmp_path / "models",)
    assert settings.evidence_folder == tmp_path / "kept"
    assert settings.gpu_pool_folder == tmp_path / "pool"
    assert settings.gpu_inventory == tmp_path / "home/gpus.yaml"
    assert settings.accepted_licences == {"one", "two", "three"}
    assert settings.timeout_multiplier == 3.0
    assert settings.machine_driver is MachineDriver.LIBVIRT
    assert settings.bundle_limit_mib == 0


def test_error_for_a_wrong_value_mentions_its_option() -> None:
    with pytest.raises(BadInputError, match="--timeout-multiplier"):
        _settings({"timeout_multiplier": "often"})


def test_setting_from_the_caller_overrides_the_option() -> None:
    settings = _settings({"evidence_dir": "theirs"}, evidence_folder=Path("own"))

    assert settings.evidence_folder == Path("own")


def test_command_line_default_comes_from_the_settings_not_from_the_tests() -> None:
    parser = argparse.ArgumentParser()
    add_to_command(parser, "--image", "--bundle-limit-days")

    arguments = parser.parse_args([])

    assert arguments.image == Settings().image != OPTIONS["--image"].tested
    assert arguments.bundle_limit_days == 30.0
    assert "(default: debian-12)" in " ".join(parser.format_help().split())
