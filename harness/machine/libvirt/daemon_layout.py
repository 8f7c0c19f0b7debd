"""The files of a private libvirtd, and the command lines that start it. The module starts nothing."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: The UID of a session that root starts: libvirt has no session for root.
_SESSION_UID = 1000

#: libvirt's own folder, on which the daemon's folder is mounted, so that socket paths stay short.
STATE = "/var/lib/libvirt/qemu"

# The shell is the namespace's init, which has to reap the orphans of QEMU's daemons. `wait` reaps
# them.
_INIT = """\
set -e
mounted=$1
shift
while [ $# -gt 0 ]; do
    mkdir -p "$2" 2>/dev/null || :
    mount --bind "$1" "$2"
    shift 2
done
: >"$mounted"
sleep infinity &
wait
"""


class DaemonKind(enum.Enum):
    """The two kinds of libvirtd: the system daemon of root, and a user's session daemon."""

    SYSTEM = "system"
    SESSION = "session"


@dataclass(frozen=True, kw_only=True)
class DaemonLayout:
    """The paths of a private daemon, outside and inside its mount namespace."""

    folder: Path
    kind: DaemonKind

    @property
    def socket(self) -> Path:
        if self.kind is DaemonKind.SYSTEM:
            return self.folder / "run" / "libvirt-sock"
        return self.folder / "state" / "run" / "libvirt" / "libvirt-sock"

    @property
    def log(self) -> Path:
        return self.folder / "libvirtd.log"

    @property
    def qemu_logs(self) -> Path:
        """Return the folder with the QEMU logs of all machines."""
        if self.kind is DaemonKind.SYSTEM:
            return self.folder / "log" / "qemu"
        return self.folder / "state" / "cache" / "libvirt" / "qemu" / "log"

    @property
    def marker(self) -> Path:
        """Return the file whose existence shows that all folders are mounted."""
        return self.folder / "state" / "mounted"

    @property
    def pid_file(self) -> Path:
        return self.folder / "state" / "libvirtd.pid"

    @property
    def settings(self) -> Path:
        """Return the folder of libvirtd's two configuration files."""
        if self.kind is DaemonKind.SYSTEM:
            return self.folder / "etc"
        return self.folder / "state" / "config" / "libvirt"

    @property
    def mounts(self) -> tuple[tuple[Path, str], ...]:
        # Lock files of consoles contain PIDs, and two PID namespaces may use the same PID.
        always = ((self.folder / "state", STATE), (self.folder / "lock", "/var/lock"))
        if self.kind is DaemonKind.SESSION:
            return always
        return (
            *always,
            (self.folder / "run", "/run/libvirt"),
            (self.folder / "etc", "/etc/libvirt"),
            (self.folder / "cache", "/var/cache/libvirt"),
            (self.folder / "log", "/var/log/libvirt"),
        )

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables of libvirtd that differ from this process's environment.

        D-Bus is switched off: systemd-machined would look up PIDs of this namespace in the host's
        namespace.
        """
        nowhere = "unix:path=/nonexistent"
        apart = {"DBUS_SYSTEM_BUS_ADDRESS": nowhere, "DBUS_SESSION_BUS_ADDRESS": nowhere}
        if self.kind is DaemonKind.SYSTEM:
            return apart
        return {
            **apart,
            "HOME": STATE,
            "XDG_RUNTIME_DIR": f"{STATE}/run",
            "XDG_CONFIG_HOME": f"{STATE}/config",
            "XDG_CACHE_HOME": f"{STATE}/cache",
            "XDG_DATA_HOME": f"{STATE}/data",
        }


def render_libvirtd_conf() -> str:
    """Render libvirtd.conf: every user who can enter the socket's folder may use the daemon."""
    return (
        'auth_unix_ro = "none"\n'
        'auth_unix_rw = "none"\n'
        'unix_sock_ro_perms = "0700"\n'
        'unix_sock_rw_perms = "0700"\n'
    )


def render_qemu_conf(kind: DaemonKind) -> str:
    """Render qemu.conf.

    QEMU runs as the daemon's user, so that QEMU can read all files that this user can read, and
    files keep their owners. QEMU writes its own logs, so that no virtlogd is needed.
    """
    own_user = (
        'user = "root"\n'
        'group = "root"\n'
        "dynamic_ownership = 0\n"
        "remember_owner = 0\n"
        "namespaces = []\n"
        "cgroup_controllers = []\n"
    )
    return (
        f'{own_user if kind is DaemonKind.SYSTEM else ""}security_driver = "none"\n'
        'stdio_handler = "file"\n'
    )


def holder_argv(mounts: Sequence[tuple[Path, str]], kind: DaemonKind) -> list[str]:
    """Return the command line of the process that creates the namespaces and keeps them alive."""
    user = (
        []
        if kind is DaemonKind.SYSTEM
        else ["--user", f"--map-user={_session_uid()}", f"--map-group={_session_uid()}"]
    )
    orders = [word for here, there in mounts for word in (str(here), there)]
    return [
        "unshare",
        *user,
        *(["--keep-caps"] if user else []),
        *("--mount", "--propagation", "private"),
        *("--pid", "--fork", "--kill-child", "--mount-proc"),
        *("sh", "-c", _INIT, "init", f"{STATE}/mounted", *orders),
    ]


def enter_argv(init: int, kind: DaemonKind) -> list[str]:
    """Return the beginning of a command line that runs in the namespaces of process `init`."""
    user = [] if kind is DaemonKind.SYSTEM else ["--user", "--preserve-credentials"]
    return ["nsenter", f"--target={init}", *user, "--mount", "--pid", "--"]


def _session_uid() -> int:
    return os.geteuid() or _SESSION_UID
