"""Acts on provisioning at the beginning of one of its commands, without any sleep.

A script stands before the program on PATH. At the command that is named it runs what the test asks
for, once; all other commands, and those of other processes, go on to the program at once.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from harness.api import GuestFile

#: Exists as soon as the act has begun.
DONE = "/run/interruption-done"
#: Has the number of commands of this form.
SEEN = "/run/interruption-seen"

#: Acts; `$parent` is the process of provisioning.
KILL = 'kill -KILL "$parent"; exit 1'
#: The command outlives provisioning, as a container's start does.
KILL_AND_GO_ON = 'kill -KILL "$parent"'
TERMINATE = 'kill -TERM "$parent"; exec sleep infinity'
#: The container that the command starts is running by then.
TERMINATE_DURING_CONTAINER = (
    '"$real" "$@" & until "$real" -n k8s.io task ls | grep -q RUNNING; do sleep 0.1; done; '
    + TERMINATE
)
#: The kernel resets the machine at once: nothing in memory is written, no service is stopped.
LOSE_POWER = "echo b >/proc/sysrq-trigger; exec sleep infinity"
SYNC_AND_LOSE_POWER = f"sync; {LOSE_POWER}"
#: The names of new files are on the disk then, but ext4 has not yet allocated text that nobody synced.
COMMIT_AND_LOSE_POWER = (
    "dd if=/dev/zero of=/usr/local/sbin/committed bs=1 count=1 conv=fsync 2>/dev/null; "
    + LOSE_POWER
)
FAIL = "exit 1"
SET_CLOCK_BACK = 'date --set="-1 hour" >/dev/null'
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
    """An act at a command, after `skip` others of this form; `*` is any text after its program.

    `process` is a part of the command line of provisioning itself.
    """

    at: str
    act: str
    skip: int = 0
    process: str = "provisioning-*.pyz"

    @property
    def file(self) -> GuestFile:
        """Return the script that stands before the program of the command."""
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
    """Return a shell command whose act follows once DKMS writes the log of its build."""
    log = "/var/lib/dkms/nvidia/*/build/make.log"
    script = f"until ls {log}; do sleep 0.1; done; {act}"
    return f"systemd-run --collect timeout 300 sh -c '{script}'"
