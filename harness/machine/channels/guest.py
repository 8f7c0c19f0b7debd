"""Operations in a running guest, over any Runner that runs commands in the guest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cloudinit import CloudInitReport, CloudInitResult
from harness.errors import HarnessError
from harness.provisioning.command import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.provisioning.command import CommandResult, Runner
    from harness.provisioning.wait import Deadline

_RUN_S = 60.0
#: An exit code that `sh` and `cat` do not use.
_ABSENT = 44
#: Waits until sysfs lists enough PCI functions. lspci would start a process for each check.
UNTIL_LISTED = (
    "while :; do found=0; for f in /sys/bus/pci/devices/*; do "
    'read -r vendor <"$f/vendor" && read -r device <"$f/device" && '
    '[ "$vendor:$device" = "$1" ] && found=$((found + 1)); done; '
    '[ "$found" -lt "$2" ] || exit 0; sleep 0.02; done'
)

#: Prints PID, path and name of each process with a matching open file, but no process that ends.
USERS = r"""
command -v find >/dev/null || { echo "there is no 'find' in the guest" >&2; exit 1; }
find /proc/[0-9]*/fd -lname "$1" -printf '%h %l\n' 2>/dev/null | while read -r folder path; do
    pid=${folder#/proc/}; pid=${pid%/fd}
    read -r name <"/proc/$pid/comm" 2>/dev/null || continue
    printf '%s\t%s\t%s\n' "$pid" "$path" "$name"
done
"""


class Guest:
    """A guest that runs commands."""

    def __init__(self, name: str, runner: Runner) -> None:
        self.name = name
        self._runner = runner

    def run(
        self,
        *argv: str,
        timeout_s: float = _RUN_S,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a command as root. Each argument is one word. A failed command raises no error."""
        return self._runner.run(argv, timeout_s=timeout_s, stdin=stdin, env=env)

    def output_of(self, *argv: str, timeout_s: float = _RUN_S) -> str:
        """Run a command that must succeed, and return its stdout without surrounding whitespace.

        Raises HarnessError if the command fails.
        """
        result = self.run(*argv, timeout_s=timeout_s)
        try:
            return result.check(f"A command in machine '{self.name}'").stdout.strip()
        except CommandError as error:
            raise HarnessError(str(error)) from error

    def read_text(self, path: str) -> str | None:
        """Return a file's text, or None if the file does not exist.

        Raises HarnessError if an existing file can't be read.
        """
        script = f'[ -e "$1" ] || exit {_ABSENT}; exec cat -- "$1"'
        result = self.run("sh", "-c", script, "read", path)
        if result.exit_code == _ABSENT:
            return None
        if not result.ok:
            raise HarnessError(
                f"The file '{path}' could not be read in machine '{self.name}'.\n{result.render()}"
            )
        return result.stdout

    def write_text(self, path: str, text: str) -> None:
        """Write a file under a temporary name, and rename it to `path`. Create missing folders."""
        script = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1.part" && mv -- "$1.part" "$1"'
        result = self.run("sh", "-c", script, "write", path, stdin=text)
        if not result.ok:
            raise HarnessError(
                f"The file '{path}' could not be written in machine '{self.name}'.\n"
                f"{result.render()}"
            )

    def wait_for_cloud_init_result(self, deadline: Deadline) -> CloudInitResult:
        """Wait until cloud-init has written its result, and return that result.

        Raises HarnessError at the deadline.
        """
        # cloud-init's own `status --wait` starts an interpreter and polls every 0.25 s. The result
        # file is renamed into place, so it is complete as soon as it exists.
        path = "/run/cloud-init/result.json"
        script = f"until [ -e {path} ]; do sleep 0.1; done; cat {path}"
        began = deadline.clock.monotonic()
        while True:
            result = self.run("sh", "-c", script, timeout_s=max(1.0, deadline.remaining_s()))
            # The deadline may have been extended during the wait.
            if not result.timed_out or deadline.has_passed():
                break
        if not result.ok:
            waited = deadline.clock.monotonic() - began
            raise HarnessError(
                f"cloud-init in machine '{self.name}' left no result within {waited:.0f} s; its "
                f"log in the guest is '/var/log/cloud-init.log'.{deadline.account()}\n{result.render()}"
            )
        return CloudInitResult.from_json(result.stdout)

    def cloud_init_report(self) -> CloudInitReport:
        """Return the errors that cloud-init has reported so far, recoverable or not.

        Raises HarnessError if cloud-init has not started.
        """
        path = "/run/cloud-init/status.json"
        text = self.read_text(path)
        if text is None:
            raise HarnessError(
                f"cloud-init in machine '{self.name}' has no '{path}': it was not started, or not "
                "installed."
            )
        return CloudInitReport.from_json(text)

    def wait_for_pci(self, ids: str, *, count: int = 1, timeout_s: float = _RUN_S) -> None:
        """Wait until the guest lists `count` PCI functions with `ids`, such as '10de:2330'.

        Raises HarnessError if the wait takes too long. The message names the functions that the
        guest lists.
        """
        vendor, _, device = ids.partition(":")
        result = self.run(
            *("sh", "-c", UNTIL_LISTED, "wait", f"0x{vendor}:0x{device}", str(count)),
            timeout_s=timeout_s,
        )
        if not result.ok:
            raise HarnessError(
                f"Machine '{self.name}' was expected to list {count} PCI functions '{ids}' "
                f"within {timeout_s:.0f} s, but lists:\n{self.output_of('lspci', '-nn')}"
            )

    def users_of(self, pattern: str) -> list[str]:
        """Return the processes that have a file open whose path matches, such as '/dev/nvidia[0-9]*'.

        Each result is a phrase with the process's name, the PID and the file. Raises HarnessError
        if the processes can't be read.
        """
        listed = self.output_of("sh", "-c", USERS, "users", pattern)
        users = []
        for line in listed.splitlines():
            fields = line.split("\t", 2)
            if len(fields) < len(("PID", "path", "name")):
                raise HarnessError(
                    f"The list of processes of machine '{self.name}' has a line of an unknown "
                    f"format: {line!r}."
                )
            pid, path, name = fields
            users.append(f"'{name}' (PID {pid}) has '{path}' open")
        return sorted(set(users))

    def power_off(self) -> None:
        """Ask systemd to power the guest off, and return immediately.

        `Machine.wait_for_power_off` waits for the power-off. Raises HarnessError if systemd
        refuses.
        """
        try:
            result = self.run("systemctl", "--no-block", "poweroff")
        except HarnessError:
            # The guest powered off before the answer arrived.
            return
        if not result.ok:
            raise HarnessError(f"Machine '{self.name}' refused to power off.\n{result.render()}")
