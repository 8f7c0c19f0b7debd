"""Leases GPUs of the host, and carries out the commands that it reads, one word per line.

usage: python3 -m suites.e2e.passthrough.inside.holder COMMANDS [ADDRESS...]

COMMANDS is a FIFO. Without addresses, the program leases any GPU. Each answer is a line of JSON on
stdout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from harness.errors import HarnessError
from harness.gpu.passthrough import GpuChoice
from harness.gpu.passthrough.pool import GpuPool
from harness.provisioning.wait import Deadline

_WAIT_S = 120.0


def say(**answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    commands, *addresses = sys.argv[1:]
    wanted = [GpuChoice(address=address) for address in addresses] or [GpuChoice()]
    try:
        with (
            Path(commands).open(encoding="utf-8") as lines,
            GpuPool().lease(
                wanted,
                holder="holder",
                deadline=Deadline.after(_WAIT_S),
                report=lambda text: say(waits=text),
            ) as leased,
        ):
            say(held=[address for gpu in leased for address in gpu.addresses])
            for line in lines:
                if line.strip() == "end":
                    break
                try:
                    for gpu in leased:
                        gpu.reset()
                except HarnessError as error:
                    say(error=str(error))
                else:
                    say(reset=len(leased))
    except HarnessError as error:
        say(failed=str(error), kind=type(error).__name__)
    else:
        say(ended=True)


if __name__ == "__main__":
    main()
