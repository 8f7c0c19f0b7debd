"""A fake of the module `libvirt_qemu`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from suites.unit.machine.libvirt.fake_libvirt import FakeConnect

if TYPE_CHECKING:
    from collections.abc import Callable

    from suites.unit.machine.libvirt.fake_libvirt import FakeDomain


#: The first registration number. Other users of the connection have smaller numbers.
_FIRST_NUMBER = 7


@dataclass
class FakeLibvirtQemu:
    """A fake module `libvirt_qemu`: records QMP commands, and returns `answers` in order."""

    answers: list[object] = field(default_factory=list)
    asked: list[dict[str, object]] = field(default_factory=list)
    handed: list[list[int]] = field(default_factory=list)
    callbacks: dict[int, Callable[..., None]] = field(default_factory=dict)

    def qemuMonitorCommand(self, domain: FakeDomain, text: str, flags: int) -> str:  # noqa: N802
        assert flags == 0
        self.asked.append({"domain": domain.uuid, **json.loads(text)})
        return json.dumps(self.answers.pop(0))

    def qemuMonitorCommandWithFiles(  # noqa: N802
        self, domain: FakeDomain, text: str, files: list[int], flags: int
    ) -> tuple[str, list[object]]:
        self.handed.append(files)
        return self.qemuMonitorCommand(domain, text, flags), []

    def qemuMonitorEventRegister(  # noqa: N802
        self, raw: object, domain: object, event: object, callback: Callable[..., None], _: object
    ) -> int:
        assert domain is None, "libvirt's client would get events of the first such domain only."
        assert event is None
        assert isinstance(raw, FakeConnect)
        number = len(self.callbacks) + _FIRST_NUMBER
        self.callbacks[number] = callback
        return number

    def qemuMonitorEventDeregister(self, raw: object, number: int) -> None:  # noqa: N802
        assert isinstance(raw, FakeConnect)
        del self.callbacks[number]

    def tell(self, domain: FakeDomain, name: str, details: str | None = None) -> None:
        for callback in tuple(self.callbacks.values()):
            callback(None, domain, name, 12, 500_000, details, None)
