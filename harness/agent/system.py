"""Changes the guest's clock, entropy and names. Tests replace the class `System`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time

_RNDADDENTROPY = 0x40085203
_RNDRESEEDCRNG = 0x5207
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class System:
    """The guest in which this process runs as root.

    The paths of all system files are below the folder `root`.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._random_fd: int | None = None

    def boot_id(self) -> str:
        with open(self._root + _BOOT_ID) as file:
            return file.read().strip()

    def wall_ns(self) -> int:
        return time.time_ns()

    def set_wall_ns(self, wall_ns: int) -> None:
        time.clock_settime_ns(time.CLOCK_REALTIME, wall_ns)

    def add_entropy(self, entropy: bytes) -> None:
        """Add `entropy` to the kernel's entropy pool, and reseed the kernel's generator at once.

        Without new entropy, all clones of one checkpoint would get the same random numbers for
        minutes.
        """
        head = struct.pack("ii", 8 * len(entropy), len(entropy))
        fd = self._random()
        fcntl.ioctl(fd, _RNDADDENTROPY, head + entropy)
        try:
            fcntl.ioctl(fd, _RNDRESEEDCRNG)
        except OSError as error:
            # The generator has no seed yet, so there is nothing to replace.
            if error.errno != errno.ENODATA:
                raise

    def prepare(self) -> None:
        """Open the random device before a checkpoint, so that no clone has to open it."""
        self._random()

    def _random(self) -> int:
        if self._random_fd is None:
            self._random_fd = os.open(self._root + "/dev/urandom", os.O_WRONLY | os.O_CLOEXEC)
        return self._random_fd

    def set_hostname(self, hostname: str) -> None:
        # Writing the file has the effect of sethostname(2), without an import of the module `socket`.
        _put(self._root + "/proc/sys/kernel/hostname", hostname)
        _replace(self._root + "/etc/hostname", hostname + "\n")

    def set_instance_id(self, instance_id: str) -> None:
        """Write the instance id that cloud-init compares with the id in the meta-data."""
        path = self._root + "/var/lib/cloud/data/instance-id"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _replace(path, instance_id + "\n")


class BorrowedSystem(System):
    """A system that the agent must not change."""

    def set_wall_ns(self, wall_ns: int) -> None:
        raise NotAGuestError(
            f"the agent refuses to set this system's clock (to {wall_ns} ns since 1970)"
        )

    def add_entropy(self, entropy: bytes) -> None:
        raise NotAGuestError(
            f"the agent refuses to add {len(entropy)} bytes of entropy to this system"
        )

    def set_hostname(self, hostname: str) -> None:
        raise NotAGuestError(f"the agent refuses to set this system's host name to '{hostname}'")

    def set_instance_id(self, instance_id: str) -> None:
        raise NotAGuestError(
            f"the agent refuses to set this system's instance id to '{instance_id}'"
        )


class NotAGuestError(Exception):
    """The agent runs on a system that is not a guest of the harness."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"This machine is not a guest of the harness: {reason}")


def _put(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _replace(path: str, text: str) -> None:
    beside = path + ".harness-agent"
    try:
        _put(beside, text)
        os.chmod(beside, 0o644)
        os.rename(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
