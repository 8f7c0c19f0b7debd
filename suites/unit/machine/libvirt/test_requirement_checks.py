"""What is said of a libvirt's host: reachable or not, and the KVM that only libvirtd may open."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

import pytest

from harness.errors import RequirementError
from harness.machine.description.spec import Accelerator
from harness.machine.libvirt import requirement_checks
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.errors import Code, NotAllowedError
from harness.machine.libvirt.requirement_checks import (
    Device,
    examine,
    judge_kvm,
    parse_emulator,
    parse_qemu_user,
)
from harness.provisioning.wait import Deadline
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect, FakeLibvirtError

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable
    from pathlib import Path

    from harness.machine.requirement_check import RequirementCheck
    from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt

CAPABILITIES = """
<capabilities><host>
  <secmodel><model>apparmor</model><doi>0</doi></secmodel>
  <secmodel><model>dac</model><doi>0</doi>
    <baselabel type='kvm'>+4242:+107</baselabel><baselabel type='qemu'>+4242:+107</baselabel>
  </secmodel>
</host></capabilities>
"""
EMULATOR = "<domainCapabilities><path>/usr/bin/qemu</path><machine>pc-q35-7.2</machine></domainCapabilities>"
USER = (4242, 107)
ROOT_ONLY = Device(mode=0o600, owner=0, group=0)


class Host(FakeConnect):
    """A libvirt that knows its host."""

    emulator: str | FakeLibvirtError = EMULATOR

    def getCapabilities(self) -> str:  # noqa: N802 - libvirt's name
        return CAPABILITIES

    def getDomainCapabilities(self, *asked: object) -> str:  # noqa: N802
        self.calls.append(f"capabilities {asked}")
        if isinstance(self.emulator, FakeLibvirtError):
            raise self.emulator
        return self.emulator


@pytest.fixture
def asked(
    libvirt: FakeLibvirt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., list[RequirementCheck]]:
    """Examine the libvirt that the test gives."""
    monkeypatch.setattr(requirement_checks, "host_folder", lambda: tmp_path)
    monkeypatch.setattr(
        requirement_checks, "load_libvirt", lambda: SimpleNamespace(getVersion=lambda: 9_000_000)
    )
    monkeypatch.setattr(Device, "read", lambda _: ROOT_ONLY)

    def examined(
        raw: Host | FakeLibvirtError,
        uri: str = "qemu:///system",
        *,
        accel: Accelerator | None = None,
    ) -> list[RequirementCheck]:
        libvirt.connects.append(raw)

        def connect(
            uri: str, folder: Path, opened: contextlib.ExitStack, tell: Callable[[str], None]
        ) -> Connection:
            del folder, tell
            return opened.enter_context(Connection.open(uri, deadline=Deadline.after(20)))

        monkeypatch.setattr(requirement_checks, "connect", connect)
        return examine(uri, qemu="/usr/bin/qemu", accelerator=accel)

    return examined


def test_kvm_that_qemus_user_may_not_open_is_the_trap() -> None:
    finding = judge_kvm(ROOT_ONLY, USER)

    assert not finding.is_met
    assert finding.found.startswith(
        "'/dev/kvm' has mode 0600 and owner root:root: libvirtd may open it, but QEMU's user 4242 "
        "may not."
    )
    assert "22 to 92 seconds were measured" in finding.found
    assert "`chgrp kvm /dev/kvm && chmod 0660 /dev/kvm`" in str(finding.remedy)


@pytest.mark.parametrize(
    ("device", "user"),
    [
        (None, USER),
        (ROOT_ONLY, None),
        (ROOT_ONLY, (0, 0)),
        (Device(mode=0o660, owner=0, group=107), USER),
        (Device(mode=0o666, owner=0, group=0), USER),
        (Device(mode=0o600, owner=4242, group=0), USER),
        (Device(mode=0o600, owner=0, group=0, has_acl=True), USER),
    ],
)
def test_kvm_that_both_or_neither_may_open_passes(
    device: Device | None, user: tuple[int, int] | None
) -> None:
    finding = judge_kvm(device, user)

    assert finding.is_met
    assert finding.remedy is None


@pytest.mark.parametrize(
    "device",
    [
        Device(mode=0o640, owner=0, group=107),
        Device(mode=0o660, owner=0, group=36),
        # The owner's bits count for the owner, whatever others may.
        Device(mode=0o066, owner=4242, group=107),
        Device(mode=0o604, owner=0, group=0),
    ],
)
def test_half_a_right_is_none(device: Device) -> None:
    assert not judge_kvm(device, USER).is_met


def test_access_list_of_a_real_device_node_is_found(tmp_path: Path) -> None:
    path = tmp_path / "kvm"
    path.touch(mode=0o640)

    device = Device.read(path)

    assert device is not None
    assert (device.mode, device.has_acl) == (0o640, False)
    assert Device.read(tmp_path / "none") is None


def test_qemus_user_is_that_of_the_discretionary_labels() -> None:
    assert parse_qemu_user(CAPABILITIES) == USER
    assert parse_qemu_user("<capabilities><host/></capabilities>") is None


def test_emulator_is_named_with_its_machine() -> None:
    assert parse_emulator(EMULATOR) == ("/usr/bin/qemu", "pc-q35-7.2")


def test_sound_host_but_for_the_trap(asked: Callable[..., list[RequirementCheck]]) -> None:
    findings = asked(Host())

    assert [each.requirement for each in findings] == list(requirement_checks.REQUIREMENTS)
    assert [each.is_met for each in findings] == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("qemu:///session", "QEMU runs as libvirtd's own user"),
        ("qemu+ssh://remote/system", "is on the remote host, and is not checked from here"),
    ],
)
def test_kvm_permissions_are_checked_only_for_a_local_system_libvirtd(
    asked: Callable[..., list[RequirementCheck]], uri: str, found: str
) -> None:
    finding = asked(Host(), uri)[-1]

    assert finding.is_met
    assert found in finding.found


@pytest.mark.parametrize(
    ("uri", "accel", "question"),
    [
        ("qemu:///system", Accelerator.TCG, "('/usr/bin/qemu', 'x86_64', 'q35', 'qemu', 0)"),
        ("qemu:///system", Accelerator.KVM, "('/usr/bin/qemu', 'x86_64', 'q35', 'kvm', 0)"),
        ("qemu+ssh://remote/system", None, "(None, 'x86_64', 'q35', 'qemu', 0)"),
    ],
)
def test_emulator_is_queried_as_machines_use_it(
    asked: Callable[..., list[RequirementCheck]],
    uri: str,
    accel: Accelerator | None,
    question: str,
) -> None:
    raw = Host()

    asked(raw, uri, accel=accel)

    assert f"capabilities {question}" in raw.calls


def test_emulator_that_libvirt_refuses_is_reported(
    asked: Callable[..., list[RequirementCheck]],
) -> None:
    raw = Host()
    raw.emulator = FakeLibvirtError("unsupported emulator", code=Code.OPERATION_FAILED)

    finding = asked(raw, accel=Accelerator.KVM)[3]

    assert not finding.is_met
    assert "failed the query of what '/usr/bin/qemu' can do: unsupported emulator" in finding.found
    assert "or use --accelerator=tcg" in str(finding.remedy)


def test_daemon_that_refuses_the_user_is_there_all_the_same(
    asked: Callable[..., list[RequirementCheck]],
) -> None:
    findings = asked(FakeLibvirtError("denied by policy", code=Code.AUTH_FAILED))

    assert [(each.requirement, each.is_met) for each in findings] == [
        ("libvirt's Python binding", True),
        ("libvirtd", True),
        ("permission for libvirt", False),
    ]
    assert "usermod --append --groups libvirt" in findings[-1].found


def test_unanswering_daemon_skips_the_checks_that_need_it(
    asked: Callable[..., list[RequirementCheck]],
) -> None:
    error = FakeLibvirtError("refused", code=Code.SYSTEM_ERROR, origin=7, errno=111)

    findings = asked(error, "qemu+tcp://remote/system")

    assert [(each.requirement, each.is_met) for each in findings] == [
        ("libvirt's Python binding", True),
        ("libvirtd", False),
    ]


def test_missing_binding_is_the_only_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> NoReturn:
        raise RequirementError("There is no binding; install it.")

    monkeypatch.setattr(requirement_checks, "load_libvirt", refuse)

    (finding,) = examine(None, qemu="qemu", accelerator=None)

    assert finding.found == "There is no binding; install it."


def test_refusal_is_distinguished_from_absence() -> None:
    assert issubclass(NotAllowedError, RequirementError)
