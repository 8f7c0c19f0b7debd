"""The checks of libvirt: whether libvirtd answers, and whether its QEMU may open /dev/kvm."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

import pytest

from harness.errors import RequirementError
from harness.machine.description.spec import Accelerator
from harness.machine.libvirt import requirement_checks
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.errors import Code
from harness.machine.libvirt.requirement_checks import (
    Device,
    examine,
    judge_kvm,
    parse_emulator,
    parse_qemu_user,
)
from harness.machine.requirement_check import RequirementCheck
from harness.provisioning.wait import Deadline
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect, FakeLibvirtError

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable
    from pathlib import Path

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
ON_KVM = "KVM for libvirt's QEMU"
USER = (4242, 107)
ROOT_ONLY = Device(mode=0o600, owner=0, group=0)


class Host(FakeConnect):
    """A connection that returns the capabilities of its host."""

    emulator: str | FakeLibvirtError = EMULATOR
    refuses_capabilities = False

    def getCapabilities(self) -> str:  # noqa: N802 - libvirt's name
        if self.refuses_capabilities:
            raise FakeLibvirtError("not now", code=Code.ACCESS_DENIED)
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
    """Return a function that checks the libvirt that a test sets up."""
    monkeypatch.setattr(requirement_checks, "host_folder", lambda: tmp_path)
    monkeypatch.setattr(
        requirement_checks, "load_libvirt", lambda: SimpleNamespace(getVersion=lambda: 9_000_003)
    )
    devices = {requirement_checks.KVM: ROOT_ONLY}
    monkeypatch.setattr(Device, "read", devices.get)

    def examined(
        raw: Host | FakeLibvirtError,
        uri: str | None = "qemu:///system",
        *,
        accel: Accelerator | None = None,
        qemu: str = "/usr/bin/qemu",
        is_private: bool = False,
    ) -> list[RequirementCheck]:
        libvirt.connects.append(raw)

        def connect(
            uri: str, folder: Path, opened: contextlib.ExitStack, tell: Callable[[str], None]
        ) -> Connection:
            assert folder.parent == tmp_path / "libvirt"
            if is_private:
                tell(f"Nobody answers at '{uri}'.")
            return opened.enter_context(Connection.open(uri, deadline=Deadline.after(20)))

        monkeypatch.setattr(requirement_checks, "connect", connect)
        findings = examine(uri, qemu=qemu, accelerator=accel)
        assert list((tmp_path / "libvirt").glob("h-*")) == []
        return findings

    return examined


def test_kvm_check_fails_if_the_qemu_user_may_not_open_dev_kvm() -> None:
    finding = judge_kvm(ROOT_ONLY, USER)

    assert (finding.requirement, finding.is_met) == (ON_KVM, False)
    assert finding.found == (
        "'/dev/kvm' has mode 0600 and owner root:root: libvirtd may open it, but QEMU's user 4242 "
        "may not. libvirt then probes QEMU some twenty times for each start of a machine, even "
        "without KVM: 22 to 92 seconds were measured instead of one."
    )
    assert finding.remedy == (
        "Run `chgrp kvm /dev/kvm && chmod 0660 /dev/kvm`, as udev does on other hosts, and add that user "
        "to the group 'kvm', "
        'or set `user = "root"` in /etc/libvirt/qemu.conf; then restart libvirtd. The '
        "private libvirtd, which a run starts if no libvirtd runs, is not affected."
    )


def test_kvm_check_passes_if_a_group_of_the_qemu_user_may_open_dev_kvm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def groups(name: str, group: int) -> list[int]:
        return [group, 36] if name == "libvirt-qemu" else [group]

    account = SimpleNamespace(pw_name="libvirt-qemu")
    monkeypatch.setattr("pwd.getpwuid", {4242: account}.__getitem__)
    monkeypatch.setattr("os.getgrouplist", groups)

    for group in (36, 107):
        assert judge_kvm(Device(mode=0o660, owner=0, group=group), USER) == RequirementCheck(
            requirement=ON_KVM,
            is_met=True,
            found="QEMU's user 'libvirt-qemu' may open '/dev/kvm'.",
        )


def test_kvm_check_passes_if_the_qemu_user_may_open_dev_kvm_or_dev_kvm_is_missing() -> None:
    expected: list[tuple[Device | None, tuple[int, int] | None, str]] = [
        (None, USER, "There is no '/dev/kvm', so libvirt does not use it."),
        (
            ROOT_ONLY,
            None,
            "libvirt runs QEMU as libvirtd's user, so both may open the same files.",
        ),
        (ROOT_ONLY, (0, 0), "QEMU's user 'root' may open '/dev/kvm'."),
        (Device(mode=0o660, owner=0, group=107), USER, "QEMU's user 4242 may open '/dev/kvm'."),
        (Device(mode=0o666, owner=0, group=0), USER, "QEMU's user 4242 may open '/dev/kvm'."),
        (Device(mode=0o600, owner=4242, group=0), USER, "QEMU's user 4242 may open '/dev/kvm'."),
        (
            Device(mode=0o600, owner=0, group=0, has_acl=True),
            USER,
            "'/dev/kvm' has an access list, which decides whether QEMU's user 4242 may open it.",
        ),
    ]

    assert [judge_kvm(device, user) for device, user, _ in expected] == [
        RequirementCheck(requirement=ON_KVM, is_met=True, found=found) for _, _, found in expected
    ]


def test_kvm_check_fails_if_the_qemu_user_may_only_read_or_only_write_dev_kvm() -> None:
    devices = [
        Device(mode=0o640, owner=0, group=107),
        Device(mode=0o660, owner=0, group=36),
        # For the owner, only the owner's permission bits count.
        Device(mode=0o066, owner=4242, group=107),
        Device(mode=0o604, owner=0, group=0),
    ]

    assert [device for device in devices if judge_kvm(device, USER).is_met] == []


def test_mode_and_owner_of_a_device_node_are_read(tmp_path: Path) -> None:
    path = tmp_path / "kvm"
    path.touch(mode=0o640)
    there = path.stat()

    assert Device.read(path) == Device(mode=0o640, owner=there.st_uid, group=there.st_gid)
    assert Device.read(tmp_path / "none") is None


def test_access_control_list_of_a_device_node_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for attributes in (
        ["security.selinux", "system.posix_acl_access"],
        ["security.selinux"],
        None,
    ):

        def attributes_of(path: Path, shown: list[str] | None = attributes) -> list[str]:
            if shown is None or path != tmp_path:
                raise OSError("This file system has no attributes.")
            return shown

        monkeypatch.setattr("os.listxattr", attributes_of)
        device = Device.read(tmp_path)
        assert device is not None
        found.append(device.has_acl)

    assert found == [True, False, False]


def test_user_of_qemu_is_read_from_the_base_labels_of_the_dac_model() -> None:
    labels = "<baselabel type='qemu'>+1:+2</baselabel><baselabel type='kvm'>+3:+4</baselabel>"
    assert parse_qemu_user(CAPABILITIES) == USER
    for inside, user in (
        (f"<host><secmodel><model>dac</model>{labels}</secmodel></host>", (3, 4)),
        ("", None),
        ("<host/>", None),
        ("<host><secmodel><model>dac</model></secmodel></host>", None),
    ):
        assert parse_qemu_user(f"<capabilities>{inside}</capabilities>") == user


def test_emulator_and_its_machine_type_are_read_from_the_capabilities() -> None:
    assert parse_emulator(EMULATOR) == ("/usr/bin/qemu", "pc-q35-7.2")
    assert parse_emulator("<domainCapabilities/>") == ("?", "?")


def test_only_the_kvm_check_fails_if_only_root_may_open_dev_kvm(
    asked: Callable[..., list[RequirementCheck]],
) -> None:
    findings = asked(Host())

    assert [each.requirement for each in findings] == list(requirement_checks.REQUIREMENTS)
    assert [each.is_met for each in findings] == [True, True, True, True, False]
    assert [each.found for each in findings[:4]] == [
        "libvirt-python, with the client library of libvirt 9.0.3.",
        "libvirt 9.0.0 at 'qemu:///system'.",
        f"User {os.geteuid()} may use libvirtd.",
        "/usr/bin/qemu, with machine 'pc-q35-7.2' as domain type 'qemu'.",
    ]


def test_libvirtd_check_mentions_that_each_run_starts_a_private_libvirtd(
    asked: Callable[..., list[RequirementCheck]],
) -> None:
    for uri in (None, "qemu:///session"):
        findings = asked(Host(), uri, is_private=True)

        assert (findings[1].requirement, findings[1].is_met) == ("libvirtd", True)
        assert findings[1].found == (
            "No libvirtd answers at 'qemu:///session', so each run starts a private libvirtd: libvirt "
            "9.0.0."
        )


def test_kvm_check_passes_for_a_session_uri_whoever_may_open_dev_kvm(
    asked: Callable[..., list[RequirementCheck]],
) -> None:
    finding = asked(Host(), "qemu:///session")[-1]

    assert finding == RequirementCheck(
        requirement=ON_KVM,
        is_met=True,
        found="QEMU runs as libvirtd's own user, so both may open the same files.",
    )


def test_other_checks_are_done_if_libvirt_refuses_to_show_its_capabilities(
    asked: Callable[..., list[RequirementCheck]],
) -> None:
    """Access control of a daemon may let a user start machines but not read capabilities."""
    raw = Host()
    raw.refuses_capabilities = True

    findings = asked(raw)

    assert [each.is_met for each in findings] == [True, True, True, True, False]
    assert findings[-1].requirement == ON_KVM
    assert findings[-1].found == (
        "libvirt at 'qemu:///system' does not allow the query of its capabilities: not now. Use a "
        "read-write connection, and a user whom libvirt's polkit rules allow to manage machines."
    )


def test_domain_capabilities_are_queried_for_the_emulator_path_and_q35_and_the_accelerator(
    asked: Callable[..., list[RequirementCheck]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", {"mine": "/opt/mine"}.get)
    for accel, kind, qemu, path in (
        (Accelerator.TCG, "qemu", "mine", "/opt/mine"),
        (Accelerator.KVM, "kvm", "mine", "/opt/mine"),
        (None, "qemu", "absent", "absent"),
    ):
        raw = Host()

        asked(raw, "qemu:///system", accel=accel, qemu=qemu)

        assert f"capabilities ('{path}', 'x86_64', 'q35', '{kind}', 0)" in raw.calls


def test_emulator_check_fails_if_libvirt_refuses_the_emulator(
    asked: Callable[..., list[RequirementCheck]],
) -> None:
    for accel, end in (
        (Accelerator.KVM, ", or use --accelerator=tcg."),
        (Accelerator.TCG, "."),
    ):
        raw = Host()
        raw.emulator = FakeLibvirtError("unsupported emulator", code=Code.OPERATION_FAILED)

        finding = asked(raw, "qemu:///system", accel=accel)[3]

        assert finding == RequirementCheck(
            requirement="libvirt's emulator",
            is_met=False,
            found=(
                "libvirt at 'qemu:///system' failed the query of the capabilities of '/usr/bin/qemu': "
                "unsupported emulator."
            ),
            remedy=(
                "Run `apt-get install --no-install-recommends qemu-system-x86`, and see "
                f"whether libvirt's QEMU user may execute the emulator{end}"
            ),
        )


def test_libvirtd_check_passes_and_permission_check_fails_if_libvirtd_refuses_the_user(
    asked: Callable[..., list[RequirementCheck]],
) -> None:
    denied = FakeLibvirtError("denied by policy", code=Code.AUTH_FAILED)
    for uri, named in (("qemu:///system", "qemu:///system"), (None, "qemu:///session")):
        findings = asked(denied, uri)

        assert [(each.requirement, each.is_met) for each in findings] == [
            ("libvirt's Python binding", True),
            ("libvirtd", True),
            ("permission for libvirt", False),
        ]
        assert findings[1].found == f"libvirtd answers at '{named}'."
        assert "usermod --append --groups libvirt" in findings[-1].found


def test_checks_that_need_libvirtd_are_skipped_if_libvirtd_does_not_answer(
    asked: Callable[..., list[RequirementCheck]],
) -> None:
    error = FakeLibvirtError("refused", code=Code.SYSTEM_ERROR, origin=7, errno=111)

    findings = asked(error, "qemu+unix:///system?socket=/none")

    assert [(each.requirement, each.is_met) for each in findings] == [
        ("libvirt's Python binding", True),
        ("libvirtd", False),
    ]
    assert findings[-1].found.startswith(
        "No libvirtd answers at 'qemu+unix:///system?socket=/none'"
    )


def test_check_without_the_python_binding_reports_only_the_missing_binding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> NoReturn:
        raise RequirementError("There is no binding; install it.")

    monkeypatch.setattr(requirement_checks, "load_libvirt", refuse)

    (finding,) = examine(None, qemu="qemu", accelerator=None)

    assert (finding.requirement, finding.is_met) == ("libvirt's Python binding", False)
    assert finding.found == "There is no binding; install it."
