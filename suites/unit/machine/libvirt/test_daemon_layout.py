"""The configuration of a private libvirtd, and the namespaces in which it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.machine.libvirt.daemon_layout import (
    DaemonKind,
    DaemonLayout,
    enter_argv,
    holder_argv,
    render_libvirtd_conf,
    render_qemu_conf,
)

if TYPE_CHECKING:
    import pytest

FOLDER = Path("/runs/a b")
SYSTEM = DaemonLayout(folder=FOLDER, kind=DaemonKind.SYSTEM)
SESSION = DaemonLayout(folder=FOLDER, kind=DaemonKind.SESSION)


def settings(text: str) -> dict[str, str]:
    """Return the settings in a configuration file of libvirt, which has one setting on each line."""
    assert text.endswith("\n")
    pairs = [line.partition(" = ") for line in text.splitlines()]
    return {name: value for name, _, value in pairs}


def test_system_daemon_has_its_own_mount_for_each_folder_of_libvirt() -> None:
    assert dict(map(reversed, SYSTEM.mounts)) == {  # type: ignore[arg-type]
        "/var/lib/libvirt/qemu": FOLDER / "state",
        "/run/libvirt": FOLDER / "run",
        "/etc/libvirt": FOLDER / "etc",
        "/var/cache/libvirt": FOLDER / "cache",
        "/var/log/libvirt": FOLDER / "log",
        "/var/lock": FOLDER / "lock",
    }


def test_all_folders_of_a_session_daemon_are_in_one_mount() -> None:
    environment = SESSION.environment

    folders = [value for name, value in environment.items() if name.startswith(("XDG", "HOME"))]
    assert len(folders) == 5
    assert all(each.startswith("/var/lib/libvirt/qemu") for each in folders)
    assert SESSION.socket == FOLDER / "state/run/libvirt/libvirt-sock"


def test_no_libvirt_daemon_connects_to_the_hosts_message_bus() -> None:
    """Systemd-machined would look up PIDs of another namespace in the host's namespace."""
    for layout in (SYSTEM, SESSION):
        assert layout.environment["DBUS_SYSTEM_BUS_ADDRESS"] == "unix:path=/nonexistent"


def test_only_the_owner_of_a_socket_may_connect() -> None:
    assert settings(render_libvirtd_conf()) == {
        "auth_unix_ro": '"none"',
        "auth_unix_rw": '"none"',
        "unix_sock_ro_perms": '"0700"',
        "unix_sock_rw_perms": '"0700"',
    }


def test_system_daemon_runs_qemu_as_root_without_changing_file_owners() -> None:
    """As root, QEMU can always open /dev/kvm."""
    session = {"security_driver": '"none"', "stdio_handler": '"file"'}

    assert settings(render_qemu_conf(DaemonKind.SESSION)) == session
    assert settings(render_qemu_conf(DaemonKind.SYSTEM)) == {
        "user": '"root"',
        "group": '"root"',
        "dynamic_ownership": "0",
        "remember_owner": "0",
        "namespaces": "[]",
        "cgroup_controllers": "[]",
        **session,
    }


def test_system_daemon_has_no_user_namespace() -> None:
    argv = holder_argv([(FOLDER / "run", "/run/libvirt")], DaemonKind.SYSTEM)

    assert argv[:10] == [
        *("unshare", "--mount", "--propagation", "private"),
        *("--pid", "--fork", "--kill-child", "--mount-proc"),
        *("sh", "-c"),
    ]
    assert argv[argv.index("init") + 1 :] == [
        "/var/lib/libvirt/qemu/mounted",
        *("/runs/a b/run", "/run/libvirt"),
    ]


def test_session_daemon_that_root_starts_has_the_uid_of_an_ordinary_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for user, seen_as in ((0, 1000), (1234, 1234)):
        monkeypatch.setattr("os.geteuid", lambda user=user: user)

        argv = holder_argv([], DaemonKind.SESSION)

        assert argv[1:5] == [
            *("--user", f"--map-user={seen_as}", f"--map-group={seen_as}"),
            "--keep-caps",
        ]


def test_only_a_session_daemon_is_entered_through_its_user_namespace() -> None:
    assert enter_argv(7, DaemonKind.SESSION) == [
        *("nsenter", "--target=7", "--user", "--preserve-credentials"),
        *("--mount", "--pid", "--"),
    ]
    assert enter_argv(7, DaemonKind.SYSTEM) == ["nsenter", "--target=7", "--mount", "--pid", "--"]
