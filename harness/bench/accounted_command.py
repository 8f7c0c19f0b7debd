"""A standalone program that runs one command and records the CPU time of all its processes.

`harness.bench.accounting` starts this program; no module imports it.

Usage: accounted_command.py RESULT COMMAND [ARGUMENT…]

The program writes the CPU seconds to the file RESULT and ends with the command's exit code. When a
process waits for an ended child, the kernel adds the child's CPU time to the waiting process. No
process waits for the children of a killed sandbox or worker. So this program is the subreaper of
all its descendants (PR_SET_CHILD_SUBREAPER, prctl(2)) and waits for the children of killed
processes too. Thus the recorded CPU time includes every descendant of the command, and the program
needs neither a cgroup nor root.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Run the command, wait for all processes that the command leaves, and write the total CPU time."""
    result, *command = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit("The kernel does not let this process wait for orphaned processes.")
    started = os.posix_spawnp(command[0], command, os.environ)
    exit_code = 1
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            break
        if pid == started:
            exit_code = os.waitstatus_to_exitcode(status)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    Path(result).write_text(f"{used.ru_utime + used.ru_stime:.6f}")
    return exit_code if exit_code >= 0 else 128 - exit_code


if __name__ == "__main__":
    sys.exit(main())
