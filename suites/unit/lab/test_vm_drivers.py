"""Which VM driver a run gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import HarnessError, RequirementError
from harness.lab.vm_drivers import examine_driver, open_driver, opener_of
from harness.machine.libvirt import connection
from harness.settings import MachineDriver, Settings

if TYPE_CHECKING:
    from pathlib import Path

    from harness.entry_points import Plugin


def test_host_without_qemu_has_no_qemu_driver(tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path, qemu="qemu-that-is-not-there")

    with (
        pytest.raises(RequirementError, match="no QEMU 'qemu-that-is-not-there'"),
        open_driver(settings, print),
    ):
        pass


def test_error_for_missing_libvirt_bindings_mentions_the_libvirt_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the libvirt driver needs the binding, so the binding is imported late."""

    def refuse() -> None:
        raise RequirementError("pip install 'gpu-node-harness[libvirt]'")

    monkeypatch.setattr(connection, "load_libvirt", refuse)
    monkeypatch.setattr("harness.machine.libvirt.driver.require_qemu", lambda _: None)
    monkeypatch.setattr("harness.machine.libvirt.driver.host_folder", lambda: tmp_path)
    settings = Settings(
        cache=tmp_path, machine_driver=MachineDriver.LIBVIRT, machine_uri="qemu:///system"
    )

    with pytest.raises(RequirementError, match=r"\[libvirt\]"), open_driver(settings, print):
        pass


def test_doctor_says_that_the_node_driver_starts_no_machines(tmp_path: Path) -> None:
    (check,) = examine_driver(Settings(cache=tmp_path, machine_driver=MachineDriver.NODE), None)

    assert (check.requirement, check.is_met) == ("machines", False)
    assert check.found == "An existing node is tested as it is, and no machine is started for it."
    assert check.remedy is not None
    assert check.remedy.startswith("Use --machine-driver=qemu or libvirt")


def test_error_for_an_entry_point_that_is_not_a_function_shows_the_value_of_the_entry_point() -> (
    None
):
    class Seven:
        """An entry point whose object is the number 7."""

        def load(self) -> int:
            return 7

        def error(self, sentence: str) -> HarnessError:
            return HarnessError(sentence)

    with pytest.raises(
        HarnessError,
        match=r"^a function that opens a VM driver is expected, but the entry point refers to 7$",
    ):
        opener_of(cast("Plugin", Seven()))
