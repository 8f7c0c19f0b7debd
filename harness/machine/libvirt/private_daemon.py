"""Runs a private libvirtd, for tests and for hosts without a running libvirtd.

The private libvirtd runs in a mount and a PID namespace, with its own copy of libvirt's compiled-in
folders. So any number of private daemons can run on a host, in addition to the host's libvirtd. All
processes of a private daemon, including machines, are in its PID namespace. The kernel ends this
namespace when the process that started the daemon ends.

The socket is in the caller's folder, which only the folder's owner may enter.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from harness.errors import HarnessError, RequirementError
from harness.foreign_files import last_bytes
from harness.host_programs import find_program
from harness.lease import make_private_folder
from harness.machine.libvirt.daemon_layout import (
    STATE,
    DaemonKind,
    DaemonLayout,
    enter_argv,
    holder_argv,
    render_libvirtd_conf,
    render_qemu_conf,
)
from harness.provisioning.command import LocalRunner, end, has_ended, spawn
from harness.provisioning.wait import Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.provisioning.command import ChildProcess
    from harness.provisioning.wait import Deadline

_SOCKET_LIMIT = 107  # The length of sun_path in unix(7), without the final NUL.
_LOOK_S = 0.02
_SIGNAL_S = 10.0
_END_S = 10.0
_LOG_LINES = 8
_LOG_BYTES = 64 << 10


class PrivateDaemon:
    """A running private libvirtd. `private_daemon` starts one."""

    def __init__(self, layout: DaemonLayout, init: int, holder: ChildProcess) -> None:
        self._layout = layout
        self._init = init
        self._holder = holder
        self._process: ChildProcess | None = None
        self.kind = layout.kind
        self.log = layout.log

    @property
    def uri(self) -> str:
        """Return the URI of the daemon."""
        query = urlencode({"socket": str(self._layout.socket)})
        return f"qemu+unix:///{self.kind.value}?{query}"

    def start(self, deadline: Deadline) -> None:
        """Start libvirtd, and return once libvirtd answers.

        Raises HarnessError, with the end of libvirtd's log, if libvirtd does not answer.
        """
        self.log.touch(mode=0o600)
        with self.log.open("ab") as log:
            self._process = spawn(
                [
                    *_WITH_LOCKED_MEMORY,
                    *self._inside(
                        *_LIBVIRTD_WITH_MODE,
                        _libvirtd(),
                        f"--pid-file={STATE}/libvirtd.pid",
                    ),
                ],
                stdout=log,
                stderr=log,
                env=self._layout.environment,
            )
        process = self._process

        def poll() -> Observation[bool]:
            if has_ended(process):
                raise HarnessError(
                    f"The private libvirtd in '{self._layout.folder}' ended as it started; its "
                    f"log ends with:\n{self._log_end()}"
                )
            return Observation(_answers(self._layout.socket), "nothing listens at its socket")

        try:
            wait_for(f"libvirtd in '{self._layout.folder}'", poll, deadline, interval_s=_LOOK_S)
        except WaitTimeoutError as error:
            raise HarnessError(f"{error} Its log ends with:\n{self._log_end()}") from error

    def restart(self, deadline: Deadline) -> None:
        """End libvirtd as an update of its package does, and start libvirtd again."""
        self.stop(deadline)
        self.start(deadline)

    def stop(self, deadline: Deadline) -> None:
        """Ask libvirtd to end. The machines of open connections end with libvirtd."""
        self._signal("TERM", deadline)

    def kill(self, deadline: Deadline) -> None:
        """Kill libvirtd, as a crash would. The machines continue."""
        self._signal("KILL", deadline)

    def processes(self) -> tuple[int, ...]:
        """Return the PIDs of the daemon and of the processes that keep its namespaces alive.

        The PIDs are from the caller's namespace.
        """
        entering = () if self._process is None else (self._process.pid,)
        inner = tuple(child for parent in entering for child in _children(parent))
        return (self._holder.pid, self._init, *entering, *inner)

    def close(self) -> None:
        """End the namespace and every process in it."""
        if self._process is not None:
            end(self._process)
        end(self._holder)

    def _signal(self, name: str, deadline: Deadline) -> None:
        process = self._process
        if process is None:
            return
        pid = self._layout.pid_file.read_text().strip()
        runner = LocalRunner()
        runner.run(self._inside("kill", "-s", name, pid), timeout_s=_SIGNAL_S).check(
            f"Ending the private libvirtd in '{self._layout.folder}'"
        )

        def poll() -> Observation[bool]:
            return Observation(has_ended(process) or None, "it still runs")

        wait_for("the end of libvirtd", poll, deadline, interval_s=_LOOK_S)
        end(process)
        self._process = None

    def _inside(self, *argv: str) -> list[str]:
        """Return the command line that runs `argv` in the daemon's namespaces."""
        return [*enter_argv(self._init, self.kind), *argv]

    def _log_end(self) -> str:
        try:
            lines = last_bytes(self.log, _LOG_BYTES).decode(errors="replace").splitlines()
        except FileNotFoundError:
            return "nothing"
        return "\n".join(lines[-_LOG_LINES:]) or "nothing"


@contextlib.contextmanager
def private_daemon(
    folder: Path,
    *,
    kind: DaemonKind = DaemonKind.SYSTEM,
    deadline: Deadline,
) -> Iterator[PrivateDaemon]:
    """Run a libvirtd whose sockets, state and logs are in `folder`, until the context ends.

    Raises RequirementError if libvirtd, or the right to a namespace, is missing.
    """
    layout = DaemonLayout(folder=folder.absolute(), kind=kind)
    _refuse_unsuitable(layout)
    _prepare(layout)
    layout.marker.unlink(missing_ok=True)
    errors = layout.folder / "init.log"
    with errors.open("wb") as log:
        holder = spawn(holder_argv(layout.mounts, kind), stdout=log, stderr=log)
    try:
        init = _wait_for_init(holder, layout.marker, errors, deadline)
        daemon = PrivateDaemon(layout, init, holder)
        try:
            daemon.start(deadline)
            yield daemon
        finally:
            daemon.close()
    finally:
        end(holder)


#: A machine that uses a GPU of the host locks all memory of the guest. The machine inherits the limit
#: (`RLIMIT_MEMLOCK`) from libvirtd. A session's libvirtd is in a user namespace, where it can lower
#: the limit, but not raise it.
_WITH_LOCKED_MEMORY = (
    *("sh", "-c"),
    'ulimit -l unlimited 2>/dev/null || ulimit -l "$(ulimit -H -l)"; exec "$@"',
    "libvirtd",
)
#: Makes libvirtd's files private: with the user's umask, other users might be able to read
#: libvirtd's state.
_LIBVIRTD_WITH_MODE = ("sh", "-c", 'umask 077; exec "$@"', "libvirtd")


def _libvirtd() -> str:
    path = find_program("libvirtd")
    if path is None:
        raise RequirementError(
            "There is no 'libvirtd' on this host; run `apt-get install --no-install-recommends "
            "libvirt-daemon-system libvirt-clients`."
        )
    return path


def _refuse_unsuitable(layout: DaemonLayout) -> None:
    _libvirtd()
    if layout.kind is DaemonKind.SYSTEM and os.geteuid() != 0:
        raise RequirementError(
            "A private libvirtd for 'qemu:///system' needs root; use 'qemu:///session', or the "
            "host's own libvirtd."
        )
    length = len(os.fsencode(layout.socket))
    if length > _SOCKET_LIMIT:
        raise HarnessError(
            f"The socket '{layout.socket}' of the private libvirtd has a path of {length} bytes, "
            f"but Unix allows {_SOCKET_LIMIT}; name a folder with a shorter path."
        )


def _prepare(layout: DaemonLayout) -> None:
    make_private_folder(layout.folder)
    for here, _ in layout.mounts:
        make_private_folder(here)
    make_private_folder(layout.settings)
    (layout.settings / "libvirtd.conf").write_text(render_libvirtd_conf())
    (layout.settings / "qemu.conf").write_text(render_qemu_conf(layout.kind))
    if layout.kind is DaemonKind.SESSION:
        make_private_folder(layout.folder / "state" / "run")


def _wait_for_init(holder: ChildProcess, marker: Path, errors: Path, deadline: Deadline) -> int:
    """Return the PID, in this namespace, of the first process of the daemon's PID namespace."""

    def poll() -> Observation[int]:
        if has_ended(holder):
            said = errors.read_text(errors="replace").strip() or "nothing"
            raise RequirementError(
                f"A private libvirtd needs its own namespaces, but `unshare` failed: {said}. "
                "Run as root, or where an ordinary user may create user namespaces (on Ubuntu "
                "24.04: `sysctl kernel.apparmor_restrict_unprivileged_userns=0`), or use the "
                "host's own libvirtd."
            )
        if not marker.exists():
            return Observation(None, "its folders are not mounted yet")
        return Observation(next(iter(_children(holder.pid)), None), "its first process has ended")

    try:
        return wait_for("the namespaces of libvirtd", poll, deadline, interval_s=_LOOK_S)
    except WaitTimeoutError as error:
        raise HarnessError(f"{error} See '{errors}'.") from error


def _answers(path: Path) -> bool | None:
    """Return True if a process listens at the socket, or None, as `wait_for` expects."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return None
    return True


def _children(process: int) -> tuple[int, ...]:
    """Return the PIDs of a process's children; () if the process has ended."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return ()
    return tuple(map(int, children.split()))
