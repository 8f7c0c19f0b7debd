"""Which VM driver a run gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.lab.vm_drivers import open_driver
from harness.machine.libvirt import connection
from harness.settings import MachineDriver, Settings

if TYPE_CHECKING:
    from pathlib import Path


def test_host_without_qemu_has_no_driver_for_it(tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path, qemu="qemu-that-is-not-there")

    with (
        pytest.raises(RequirementError, match="no QEMU 'qemu-that-is-not-there'"),
        open_driver(settings, print),
    ):
        pass


def test_host_without_libvirts_binding_gets_the_extra_as_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else of the harness needs it, and so it is imported no sooner."""

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


def test_existing_node_starts_no_machines(tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path, machine_driver=MachineDriver.NODE)

    with (
        pytest.raises(RequirementError, match=r"no machine is started.*--machine-driver=qemu"),
        open_driver(settings, print),
    ):
        pass
