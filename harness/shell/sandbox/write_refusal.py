"""A program that runs one command whose writes outside of given paths the kernel refuses.

The program imports no module of the harness.

Usage: write_refusal.py [SETTING=VALUE…] -- COMMAND [ARGUMENT…]; each 'writable=PATH' allows writes
below one path.

This program is for ordinary users to whom the kernel refuses namespaces. throwaway_root.py protects
the host better than this program, and has the same exit codes. Source: landlock(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys

CANNOT_ENTER = 251
KERNEL_REFUSES = 249
MARK = "harness sandbox:"
_report = {"fd": 2}
"""The descriptor to which this program reports why the command did not run."""

_PR_SET_NO_NEW_PRIVS = 38
_SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_ADD, _SYS_LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_WRITES = sum(1 << bit for bit in (1, *range(4, 13)))
_LANDLOCK_WRITE_FILE = 1 << 1
_LANDLOCK_REFER, _LANDLOCK_REFER_SINCE = 1 << 13, 2
_LANDLOCK_TRUNCATE, _LANDLOCK_TRUNCATE_SINCE = 1 << 14, 3
_LANDLOCK_VERSION, _LANDLOCK_SCOPES_SINCE, _LANDLOCK_SCOPE_ABSTRACT_SOCKETS = 1, 6, 1
_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)

_libc = ctypes.CDLL(None, use_errno=True)


def _call(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _say(error: OSError) -> None:
    os.write(_report["fd"], f"{MARK} {error}\n".encode(errors="surrogateescape"))


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def _reset_signals() -> None:
    """Restore the default action of the signals that this process ignores, such as SIGPIPE, which Python ignores."""
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _refuse_writes(cwd: str, places: list[str], command: list[str]) -> int:
    """Let the kernel refuse writes outside of `cwd` and `places`, then run the command.

    The command can still signal the user's other processes. Root could signal all processes, so
    root may not use this sandbox.
    """
    if os.geteuid() == 0:
        _say(PermissionError("code of root needs the throw-away root"))
        return CANNOT_ENTER
    try:
        version = _libc.syscall(_SYS_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION)
        has_scopes = version >= _LANDLOCK_SCOPES_SINCE
        writes = _LANDLOCK_WRITES
        if version >= _LANDLOCK_REFER_SINCE:  # older kernels refuse links into other folders
            writes |= _LANDLOCK_REFER
        if version >= _LANDLOCK_TRUNCATE_SINCE:
            writes |= _LANDLOCK_TRUNCATE
        rules = _Ruleset(writes, 0, _LANDLOCK_SCOPE_ABSTRACT_SOCKETS)
        size = ctypes.sizeof(rules) if has_scopes else _Ruleset.handled_access_fs.size
        ruleset = _call(
            _libc.syscall(_SYS_LANDLOCK_CREATE, ctypes.byref(rules), size, 0), "landlock"
        )
        for place in [*places, "/dev"]:
            fd = os.open(place, os.O_PATH | os.O_CLOEXEC)
            access = _LANDLOCK_WRITE_FILE if place == "/dev" else writes
            rule = _PathRule(access, fd)
            _call(_libc.syscall(_SYS_LANDLOCK_ADD, ruleset, 1, ctypes.byref(rule), 0), "landlock")
            os.close(fd)
        _call(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        _call(_libc.syscall(_SYS_LANDLOCK_RESTRICT, ruleset, 0), "landlock")
        os.close(ruleset)
        os.chdir(cwd)
    except OSError as error:
        _say(error)
        return KERNEL_REFUSES if error.errno in _REFUSALS else CANNOT_ENTER
    _reset_signals()
    return os.execvp(command[0], command)  # noqa: S606 - starts a program without a shell


def main() -> int:
    """Run the isolated command in place of this process; return an exit code on failure."""
    end = sys.argv.index("--")
    settings = [word.split("=", 1) for word in sys.argv[1:end]]
    places = [value for name, value in settings if name == "writable"]
    _report["fd"] = int(dict(settings).get("report_fd", "2"))
    if _report["fd"] != 2:  # the command must not inherit it
        os.set_inheritable(_report["fd"], False)
    return _refuse_writes(dict(settings)["cwd"], places, sys.argv[end + 1 :])


if __name__ == "__main__":
    sys.exit(main())
