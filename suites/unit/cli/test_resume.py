"""`harness resume` uses the VM driver and the accelerator with which the saved machine ran."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from harness.cli import main, resume
from harness.lab.machine_bundle import MachineBundle, read_bundle
from harness.machine.description.spec import Accelerator
from harness.settings import AcceleratorOption, MachineDriver, Settings
from suites.unit.lab.bundle_folder import a_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suites.fakes.clock import FakeClock

OWN, OTHER = "qemu+ssh://own/system", "qemu:///session"


@pytest.fixture
def saved(tmp_path: Path) -> MachineBundle:
    return read_bundle(a_bundle(tmp_path / "node" / "checkpoint"))


def settings_for(
    saved: MachineBundle, settings: Settings, *, driver: str, uri: str | None = None
) -> Settings:
    bundle = dataclasses.replace(saved, driver=driver)
    return resume._settings_for(bundle, settings, uri)


def test_uri_option_overrides_the_uri_setting(saved: MachineBundle) -> None:
    """A machine that ran without libvirt has no URI, whatever the environment variable says."""
    for driver, option, uri in (
        ("libvirt", OTHER, OTHER),
        ("libvirt", None, OWN),
        ("qemu", None, None),
    ):
        settings = Settings(machine_driver=MachineDriver.LIBVIRT, machine_uri=OWN)

        found = settings_for(saved, settings, driver=driver, uri=option)

        assert (found.machine_driver, found.machine_uri) == (MachineDriver(driver), uri), driver


def test_resume_uses_the_accelerator_of_the_saved_machine(saved: MachineBundle) -> None:
    for accelerator in Accelerator:
        spec = dataclasses.replace(saved.spec, accelerator=accelerator)
        other = Settings(accelerator=AcceleratorOption.AUTO, qemu="my-qemu")

        found = settings_for(dataclasses.replace(saved, spec=spec), other, driver="qemu")

        assert found.accelerator is AcceleratorOption(accelerator.accel), accelerator
        assert found.qemu == "my-qemu", accelerator


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, fake_time: FakeClock) -> list[object]:
    """Return the recorded calls of `harness resume`; its machine runs until 5000 s have passed."""
    asked: list[object] = []

    class Vm:
        @property
        def is_running(self) -> bool:
            return fake_time.elapsed_s < 5000

    machine = SimpleNamespace(folder=Path("/runs/node-1"), vm=Vm())

    @contextlib.contextmanager
    def resumed(bundle: MachineBundle, **options: object) -> Iterator[object]:
        asked.append((bundle.name, options))
        yield machine

    def run_in(machine: object, argv: object) -> int:
        asked.append((machine, argv))
        return 3

    def open_lab(
        settings: Settings, _listener: object
    ) -> contextlib.AbstractContextManager[object]:
        asked.append((settings.qemu, settings.machine_uri))
        return contextlib.nullcontext(lab)

    lab = SimpleNamespace(resume=resumed, roster=SimpleNamespace(find=lambda word: word))
    monkeypatch.setattr(resume, "Lab", SimpleNamespace(open=open_lab))
    monkeypatch.setattr("time.time", lambda: 1000.0 + fake_time.elapsed_s)
    monkeypatch.setattr(resume, "run_in", run_in)
    monkeypatch.setattr("signal.signal", lambda number, _: asked.append(number))
    return asked


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("hold", [("1", 3600), ("2.5", 5000), ("0", 0)])
def test_resume_with_hold_waits_until_the_deadline_or_the_end_of_the_machine(
    tmp_path: Path,
    held: list[object],
    fake_time: FakeClock,
    capsys: pytest.CaptureFixture[str],
    hold: tuple[str, int],
) -> None:
    hours, seconds = hold
    until = 1000.0 + 3600 * float(hours)

    assert main(["resume", str(tmp_path / "node"), f"--hold={hours}", "--base=b"]) == 0

    options = {"base": Path.cwd() / "b", "kept_until": until}
    assert held == [signal.SIGTERM, (Settings().qemu, None), ("node", options)]
    assert fake_time.elapsed_s == pytest.approx(seconds, abs=1)
    assert capsys.readouterr().out.endswith("node-1\n")


def test_resume_refuses_an_invalid_or_infinite_hold_time(
    tmp_path: Path, held: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    """`harness ps` and `harness gc` print the end."""
    for hours in ("nan", "inf", "-1", "1e9"):
        assert main(["resume", str(tmp_path / "node"), f"--hold={hours}"]) == 2, hours

        assert "--hold: " in capsys.readouterr().err, hours
        assert held == [], hours


def test_resume_runs_the_given_command_in_the_resumed_machine(
    tmp_path: Path, saved: MachineBundle, monkeypatch: pytest.MonkeyPatch, held: list[object]
) -> None:
    monkeypatch.setattr(
        resume, "read_bundle", lambda _: dataclasses.replace(saved, driver="libvirt")
    )
    words = ["--qemu", "my-qemu", "--machine-uri", OTHER]

    assert main(["resume", *words, str(tmp_path / "node"), "--", "id", "-u"]) == 3

    options = {"base": None, "kept_until": None}
    assert held == [("my-qemu", OTHER), ("node", options), ("node-1", ["id", "-u"])]
