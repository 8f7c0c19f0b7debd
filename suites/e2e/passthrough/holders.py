"""Controls processes on the GPU host that lease GPUs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.provisioning.wait import Observation, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.lab.machine import LabMachine

_ANSWER_KVM_S = 15.0


@dataclass
class Holder:
    """A process that leases GPUs; `name` is the name of its unit."""

    host: LabMachine
    name: str
    _read: int = field(init=False, default=0)

    def start(self, *addresses: str) -> Holder:
        """Let the process lease the GPUs at these addresses, or any GPU; it waits for GPUs in use."""
        guest = self.host.guest
        guest.output_of("mkfifo", self._commands)
        guest.output_of(
            *("systemd-run", "--quiet", f"--unit={self.name}"),
            f"--property=StandardOutput=file:{self._answers}",
            *("python3", "-m", "suites.e2e.passthrough.inside.holder", self._commands),
            *addresses,
        )
        # The FIFO is kept open; otherwise the process would read end-of-file after the first
        # command.
        guest.output_of(
            *("systemd-run", "--quiet", f"--unit={self.name}-commands"),
            *("sh", "-c", 'exec 3>"$1"; exec sleep infinity', "sh", self._commands),
        )
        return self

    def tell(self, command: str) -> None:
        self.host.guest.output_of("sh", "-c", f"echo {command} >{self._commands}")

    def answer(self) -> Mapping[str, object]:
        """Wait for the next answer of the process; raises WaitTimeoutError."""

        def look() -> Observation[str]:
            text = self.host.guest.read_text(self._answers) or ""
            lines = text.splitlines()
            if len(lines) > self._read:
                return Observation(lines[self._read], "")
            log = self.host.guest.run("journalctl", "--unit", self.name, "--lines=5").stdout
            return Observation(None, f"{len(lines)} answers; log: {log}")

        line = wait_for(
            f"answer {self._read + 1} of '{self.name}'",
            look,
            self.host.deadline(_ANSWER_KVM_S),
            interval_s=0.2,
        )
        self._read += 1
        answer: dict[str, object] = json.loads(line)
        return answer

    def kill(self) -> None:
        """Kill the process as the kernel does when memory runs out: the process can't clean up."""
        self.host.guest.output_of(
            "systemctl", "kill", "--kill-whom=main", "--signal=KILL", self.name
        )
        self.host.guest.run(
            "sh", "-c", f"while systemctl --quiet is-active {self.name}; do sleep 0.1; done"
        )

    @property
    def _commands(self) -> str:
        return f"/run/{self.name}.commands"

    @property
    def _answers(self) -> str:
        return f"/run/{self.name}.answers"


def driver_of(host: LabMachine, address: str) -> str | None:
    """Return the driver of a PCI function, as the host's kernel shows it."""
    result = host.guest.run("readlink", f"/sys/bus/pci/devices/{address}/driver")
    return result.stdout.strip().rpartition("/")[2] if result.ok else None


def gpu_addresses(host: LabMachine) -> list[str]:
    """Return the addresses of the host's GPUs."""
    lines = host.guest.output_of("lspci", "-Dn", "-d", "10de:").splitlines()
    return [line.split()[0] for line in lines]


def gpu_drivers(host: LabMachine) -> list[str | None]:
    """Return the driver of each GPU of the host, in the order of their addresses."""
    return [driver_of(host, address) for address in gpu_addresses(host)]
