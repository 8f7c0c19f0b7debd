"""Tests whose marker names the VM drivers under which they run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import BadInputError
from harness.plugin.machine_drivers import ForeignTests
from harness.settings import MachineDriver

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakeItem:
    """A fake test with markers; the closest marker is the first."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid = nodeid
        self.marks = marks

    def iter_markers(self, name: str) -> Iterator[pytest.Mark]:
        return (each.mark for each in self.marks if each.mark.name == name)


def foreign_tests(driver: MachineDriver = MachineDriver.QEMU) -> ForeignTests:
    settings: Any = SimpleNamespace(machine_driver=driver)
    return ForeignTests(settings)


def kept(plugin: ForeignTests, *items: FakeItem) -> list[str]:
    hook = SimpleNamespace(pytest_deselected=lambda items: None)  # noqa: ARG005 - pytest's name
    left: Any = list(items)
    config: Any = SimpleNamespace(hook=hook)
    plugin.pytest_collection_modifyitems(config, left)
    return [item.nodeid for item in left]


def summary(plugin: ForeignTests) -> list[str]:
    lines: list[str] = []
    reporter: Any = SimpleNamespace(write_line=lines.append)
    plugin.pytest_terminal_summary(reporter)
    return lines


LIBVIRT_ONLY = pytest.mark.vm_driver("libvirt", reason="it is about domains")
BOTH = pytest.mark.vm_driver("qemu", "libvirt", reason="it is slow elsewhere")


def test_tests_for_another_driver_are_deselected_with_their_reasons() -> None:
    plugin = foreign_tests()

    assert kept(
        plugin,
        FakeItem("plain"),
        FakeItem("foreign", LIBVIRT_ONLY),
        FakeItem("both", BOTH),
        FakeItem("outer", BOTH, LIBVIRT_ONLY),
    ) == ["plain", "both"]
    assert summary(plugin) == [
        "deselected under --machine-driver=qemu: 2 tests, because it is about domains"
    ]
    assert kept(foreign_tests(MachineDriver.LIBVIRT), FakeItem("x", LIBVIRT_ONLY)) == ["x"]


def test_tests_that_several_workers_deselect_are_counted_once() -> None:
    controller, worker = foreign_tests(), foreign_tests()
    kept(worker, FakeItem("x", LIBVIRT_ONLY))
    output: dict[str, object] = {}
    session: Any = SimpleNamespace(config=SimpleNamespace(workeroutput=output))
    worker.pytest_sessionfinish(session)

    for _ in range(2):
        controller.pytest_testnodedown(SimpleNamespace(workeroutput=output), None)
    controller.pytest_testnodedown(SimpleNamespace(), "crashed")

    assert [line.split(",")[0] for line in summary(controller)] == [
        "deselected under --machine-driver=qemu: 1 test"
    ]


def test_vm_driver_marker_without_a_valid_driver_or_reason_is_refused() -> None:
    for marker in (
        pytest.mark.vm_driver(reason="x"),
        pytest.mark.vm_driver("qemu"),
        pytest.mark.vm_driver("xen", reason="x"),
        pytest.mark.vm_driver(["qemu"], reason="x"),
    ):
        metafunc: Any = SimpleNamespace(definition=FakeItem("a.py::x", marker))

        with pytest.raises(BadInputError, match=r"a\.py::x.*'vm_driver'"):
            foreign_tests().pytest_generate_tests(metafunc)
