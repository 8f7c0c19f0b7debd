"""Disturbs provisioning at the beginning of one of its commands, without any sleep.

A script comes before the program on PATH. At the named command, the script runs the test's action
once. All other commands, and the commands of other processes, run the program at once.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from harness.api import GuestFile

#: This file exists as soon as the act has begun.
DONE = "/run/interruption-done"
#: This file counts the commands of this form.
SEEN = "/run/interruption-seen"

#: Acts: shell code in which `$parent` is the process of provisioning.
KILL = 'kill -KILL "$parent"; exit 1'
#: The command continues after provisioning is killed, as does the start of a container.
KILL_AND_GO_ON = 'kill -KILL "$parent"'
TERMINATE = 'kill -TERM "$parent"; exec sleep infinity'
#: The act waits until the container that the command starts is running.
TERMINATE_DURING_CONTAINER = (
    '"$real" "$@" & until "$real" -n k8s.io task ls | grep -q RUNNING; do sleep 0.1; done; '
    + TERMINATE
)
#: The kernel resets the machine at once: it writes no cached data to disk and stops no service.
LOSE_POWER = "echo b >/proc/sysrq-trigger; exec sleep infinity"
SYNC_AND_LOSE_POWER = f"sync; {LOSE_POWER}"
#: Then the names of new files are on the disk, but not the content of files that were not synced.
COMMIT_AND_LOSE_POWER = (
    "dd if=/dev/zero of=/usr/local/sbin/committed bs=1 count=1 conv=fsync 2>/dev/null; "
    + LOSE_POWER
)
FAIL = "exit 1"
SET_CLOCK_BACK = 'date --set="-1 hour" >/dev/null'
SET_CLOCK_FORWARD = 'date --set="+1 hour" >/dev/null'
GO_ON = ":"
REMOVE_GPU = (
    "for each in /sys/bus/pci/drivers/nvidia/0*; do echo 1 >$(readlink -f $each)/remove; done"
)

_SCRIPT = """\
#!/bin/sh
real=$(PATH=/usr/sbin:/usr/bin:/sbin:/bin command -v {program}) || exit 127
parent=$PPID
case $(tr '\\0' ' ' <"/proc/$parent/cmdline") in
    *{process}*)
        case "{program} $*" in
            {pattern})
                seen=$(cat {seen} 2>/dev/null || echo 0)
                echo $((seen + 1)) >{seen}
                if [ "$seen" = {skip} ]; then
                    cp /proc/uptime {done}
                    {act}
                fi
                ;;
        esac
        ;;
esac
exec "$real" "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """An act at the command `at`, after `skip` commands of the same form; `*` in `at` is any text.

    `process` is a part of the command line of provisioning itself.
    """

    at: str
    act: str
    skip: int = 0
    process: str = "provisioning-*.pyz"

    @property
    def file(self) -> GuestFile:
        """Return the script that is found on PATH before the command's program."""
        program = self.at.split()[0]
        pattern = "*".join(shlex.quote(part) if part else "" for part in self.at.split("*"))
        text = _SCRIPT.format(
            process=self.process,
            program=program,
            pattern=pattern,
            skip=self.skip,
            done=DONE,
            seen=SEEN,
            act=self.act,
        )
        return GuestFile(path=f"/usr/local/sbin/{program}", content=text.encode(), mode=0o755)


def once_dkms_compiles(act: str) -> str:
    """Return a command that waits in the background until DKMS writes its build log, then acts."""
    log = "/var/lib/dkms/nvidia/*/build/make.log"
    script = f"until ls {log}; do sleep 0.1; done; {act}"
    return f"systemd-run --collect timeout 300 sh -c '{script}'"
