"""Machines whose domain XML is recorded. Each machine has a feature that the others lack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from harness.machine.description.spec import Accelerator, Firmware, Flash, MemoryFile
from harness.machine.libvirt.domain_xml import DomainHost, render_domain
from suites.unit.machine.description.builders import a_machine_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.machine.description.spec import MachineSpec

GOLDENS = Path(__file__).parent / "goldens"
UUID = "6b0e61a3-2d2c-4f2e-8e0a-0f8a1d1c3b5e"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A machine spec, and the host for which the machine's domain is rendered."""

    spec: MachineSpec
    host: DomainHost

    def render(self) -> str:
        return render_domain(self.spec, self.host, name="node-6b0e61a3", uuid=UUID)


def a_host(
    *, security_models: tuple[str, ...] = (), agent_socket: Path | None = Path("/run/s/agent")
) -> DomainHost:
    return DomainHost(
        emulator="/usr/bin/qemu-system-x86_64",
        security_models=security_models,
        owner=(1000, 1000),
        agent_socket=agent_socket,
    )


_RAM = Path("/checkpoints/ram")

CASES: Mapping[str, Case] = MappingProxyType(
    {
        "plain": Case(spec=a_machine_spec(), host=a_host()),
        "template": Case(
            spec=a_machine_spec(
                memory_file=MemoryFile(path=_RAM, is_private=False),
                seed=Path("/runs/seed.iso"),
                extra_append=("systemd.unit=basic.target",),
            ),
            host=a_host(security_models=("none", "dac")),
        ),
        "clone": Case(
            spec=a_machine_spec(
                memory_file=MemoryFile(path=_RAM, is_private=True),
                is_restored=True,
                root_ports=4,
            ),
            host=a_host(security_models=("apparmor", "dac")),
        ),
        "iommu": Case(spec=a_machine_spec(has_iommu=True), host=a_host()),
        "kvm-with-iommu": Case(
            spec=a_machine_spec(
                accelerator=Accelerator.KVM,
                has_iommu=True,
                cpus=4,
                root_ports=2,
                root_port_aperture_mib=131072,
            ),
            host=a_host(),
        ),
        "uefi": Case(
            spec=a_machine_spec(
                kernel=Firmware(
                    flash=Flash(
                        code=Path("/usr/share/OVMF/OVMF_CODE_4M.fd"),
                        variables=Path("/runs/variables.fd"),
                    )
                )
            ),
            host=a_host(),
        ),
        "described": Case(spec=a_machine_spec(root_ports=0), host=a_host(agent_socket=None)),
        # Each text that a user can set has characters that XML or QEMU treats specially.
        "hostile-paths": Case(
            spec=a_machine_spec(
                disk=Path("/runs/a, b='<&>\"/disk.qcow2"),
                seed=Path("/runs/<seed>&.iso"),
                extra_append=("name=<&'\">",),
            ),
            host=a_host(),
        ),
    }
)
