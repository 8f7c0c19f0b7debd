"""Which VM driver a run gets."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import HarnessError, RequirementError
from harness.lab.vm_drivers import examine_driver, open_driver, opener_of
from harness.machine.description.spec import Accelerator
from harness.machine.libvirt import connection, requirement_checks
from harness.settings import MachineDriver, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.entry_points import Plugin


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


def test_existing_node_lacks_machines_of_its_own(tmp_path: Path) -> None:
    (check,) = examine_driver(Settings(cache=tmp_path, machine_driver=MachineDriver.NODE), None)

    assert (check.requirement, check.is_met) == ("machines", False)
    assert check.found == "An existing node is tested as it is, and no machine is started for it."
    assert check.remedy is not None
    assert check.remedy.startswith("Use --machine-driver=qemu or libvirt")


def test_qemu_needs_nothing_beside_what_every_machine_needs(tmp_path: Path) -> None:
    assert examine_driver(Settings(cache=tmp_path), Accelerator.TCG) == []


def test_libvirt_is_examined_where_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def examine(uri: str, **how: object) -> list[str]:
        asked.append((uri, how))
        return ["a check"]

    monkeypatch.setattr(requirement_checks, "examine", examine)
    settings = Settings(
        cache=tmp_path,
        machine_driver=MachineDriver.LIBVIRT,
        machine_uri="qemu:///system",
        qemu="my-qemu",
    )

    assert cast("list[str]", examine_driver(settings, Accelerator.KVM)) == ["a check"]

    assert asked == [("qemu:///system", {"qemu": "my-qemu", "accelerator": Accelerator.KVM})]


def test_libvirt_driver_is_opened_as_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    @contextlib.contextmanager
    def opened(uri: str, **how: object) -> Iterator[str]:
        asked.append((uri, how))
        yield "the driver"

    monkeypatch.setattr("harness.machine.libvirt.driver.LibvirtDriver.open", opened)
    settings = Settings(
        cache=tmp_path,
        machine_driver=MachineDriver.LIBVIRT,
        machine_uri="qemu:///system",
        qemu="my-qemu",
    )

    with open_driver(settings, print) as driver:
        assert cast("str", driver) == "the driver"

    how = {"qemu": "my-qemu", "cache": tmp_path, "report": print}
    assert asked == [("qemu:///system", how)]


def test_entry_point_that_opens_nothing_says_what_it_gives() -> None:
    class Seven:
        """An entry point whose object is the number 7."""

        def load(self) -> int:
            return 7

        def error(self, sentence: str) -> HarnessError:
            return HarnessError(sentence)

    with pytest.raises(
        HarnessError, match=r"^a function that opens a VM driver is expected, but it gives 7$"
    ):
        opener_of(cast("Plugin", Seven()))
