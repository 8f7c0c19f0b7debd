"""The numbers of codes and events in the harness equal the numbers in libvirt's headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.machine.libvirt import connection, events
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.errors import Code, ErrorDomain
from harness.plugin.select import requirements

if TYPE_CHECKING:
    from harness.settings import Settings


@pytest.fixture
def libvirt(settings: Settings) -> Any:
    with requirements(settings):
        return load_libvirt()


def test_error_codes_match_libvirt(libvirt: Any) -> None:
    assert {code.name: getattr(libvirt, f"VIR_ERR_{code.name}") for code in Code} == {
        code.name: code.value for code in Code
    }
    assert libvirt.VIR_FROM_RPC == ErrorDomain.RPC
    assert libvirt.VIR_FROM_REMOTE == ErrorDomain.REMOTE


def test_event_numbers_match_libvirt(libvirt: Any) -> None:
    names = [kind.name for kind in events._LIFE_CYCLE]

    assert [getattr(libvirt, f"VIR_DOMAIN_EVENT_{name}") for name in names] == list(
        range(len(names))
    )
    assert (
        events._LIFECYCLE_ID,
        events._REBOOT_ID,
        events._DEVICE_REMOVED_ID,
        events._DEVICE_ADDED_ID,
        events._DEVICE_KEPT_ID,
    ) == (
        libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
        libvirt.VIR_DOMAIN_EVENT_ID_REBOOT,
        libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED,
        libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
        libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVAL_FAILED,
    )


def test_numbers_of_close_reasons_match_libvirt(libvirt: Any) -> None:
    assert list(connection._CLOSE_REASONS) == [
        libvirt.VIR_CONNECT_CLOSE_REASON_ERROR,
        libvirt.VIR_CONNECT_CLOSE_REASON_EOF,
        libvirt.VIR_CONNECT_CLOSE_REASON_KEEPALIVE,
        libvirt.VIR_CONNECT_CLOSE_REASON_CLIENT,
    ]
