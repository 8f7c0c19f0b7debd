"""What a saved machine is resumed with: the driver and the accelerator that ran it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from harness.cli import main, resume
from harness.lab.machine_bundle import MachineBundle, read_bundle
from harness.machine.description.spec import Accelerator
from harness.settings import AcceleratorOption, MachineDriver, Settings
from suites.unit.lab.bundle_folder import a_bundle

if TYPE_CHECKING:
    from pathlib import Path

OWN, OTHER = "qemu+ssh://own/system", "qemu:///session"


@pytest.fixture
def saved(tmp_path: Path) -> MachineBundle:
    return read_bundle(a_bundle(tmp_path / "node" / "checkpoint"))


def settings_for(
    saved: MachineBundle, settings: Settings, *, driver: str, uri: str | None = None
) -> Settings:
    bundle = dataclasses.replace(saved, driver=driver)
    return resume._settings_for(bundle, settings, uri)


@pytest.mark.parametrize(
    ("driver", "option", "uri"),
    [
        ("libvirt", OTHER, OTHER),
        ("libvirt", None, OWN),
        ("qemu", None, None),
    ],
)
def test_uri_of_the_option_comes_before_the_setting(
    saved: MachineBundle, driver: str, option: str | None, uri: str | None
) -> None:
    """A machine that ran under QEMU itself has none, whatever the environment has."""
    settings = Settings(machine_driver=MachineDriver.LIBVIRT, machine_uri=OWN)

    found = settings_for(saved, settings, driver=driver, uri=option)

    assert (found.machine_driver, found.machine_uri) == (MachineDriver(driver), uri)


@pytest.mark.parametrize("accelerator", Accelerator)
def test_accelerator_is_the_one_that_ran_the_machine(
    saved: MachineBundle, accelerator: Accelerator
) -> None:
    spec = dataclasses.replace(saved.spec, accelerator=accelerator)
    other = Settings(accelerator=AcceleratorOption.AUTO, qemu="my-qemu")

    found = settings_for(dataclasses.replace(saved, spec=spec), other, driver="qemu")

    assert found.accelerator is AcceleratorOption(accelerator.accel)
    assert found.qemu == "my-qemu"


@pytest.mark.parametrize(
    ("words", "uri"),
    [([], None), (["--machine-uri", OTHER], OTHER)],
)
def test_options_of_the_command_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], uri: str | None
) -> None:
    asked: list[object] = []

    def fake_resume(
        settings: Settings,
        bundle: Path,
        argv: object,
        *,
        base: Path | None,
        uri: str | None,
        until: float | None,
    ) -> int:
        asked.extend([settings.qemu, bundle, argv, base, uri, until])
        return 7

    monkeypatch.setattr(resume, "resume", fake_resume)
    line = ["resume", "--qemu", "my-qemu", "--base", str(tmp_path / "b"), *words, str(tmp_path)]

    assert main([*line, "--", "ls", "-l"]) == 7

    assert asked == ["my-qemu", tmp_path, ["ls", "-l"], tmp_path / "b", uri, None]


def test_machine_of_an_evidence_folder_is_found_and_resumed(
    tmp_path: Path, saved: MachineBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def fake_continue(
        settings: Settings,
        bundle: MachineBundle,
        argv: object,
        *,
        base: Path | None,
        until: float | None,
    ) -> int:
        asked.extend([settings.machine_driver, bundle.folder, argv, base, until])
        return 0

    monkeypatch.setattr(resume, "_continue", fake_continue)

    assert resume.resume(Settings(), tmp_path / "node", ["id"], until=5.0) == 0

    assert asked == [MachineDriver.QEMU, saved.folder, ["id"], None, 5.0]
