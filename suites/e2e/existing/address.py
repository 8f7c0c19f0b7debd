"""Makes a machine of ours reachable like a foreign node: only by OpenSSH."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.machine.existing_node import NodeAddress

if TYPE_CHECKING:
    from pathlib import Path

    from harness.expect.every_node import NodeVerdict
    from harness.lab.machine import LabMachine
    from harness.machine.channels.ssh import SshIdentity

#: sshd greets a client slowly under emulation.
CONNECT_S = 120


def address_of(machine: LabMachine, identity: SshIdentity, folder: Path) -> NodeAddress:
    """Write an ssh configuration with the machine's host key, and return the machine's address."""
    config = folder / "ssh_config"
    config.write_text(
        "Host *\n"
        f"  IdentityFile {identity.folder}/user\n"
        "  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {identity.folder}/known_hosts\n"
        "  HostKeyAlias guest\n"
        "  StrictHostKeyChecking yes\n"
    )
    uri = f"ssh://root@127.0.0.1:{machine.vm.ssh_port()}?config={config}&timeout={CONNECT_S}"
    return NodeAddress.from_uri(uri, source="the test")


def by_name(verdicts: list[NodeVerdict]) -> dict[str, NodeVerdict]:
    return {verdict.expectation.name: verdict for verdict in verdicts}


#: Sets the address that QEMU's user network forwards to, and the gateway of that network.
_ONLINE = (
    "ip link set eth0 up && ip address replace 10.0.2.15/24 dev eth0 && "
    "ip route replace default via 10.0.2.2"
)


def let_in(machine: LabMachine, identity: SshIdentity) -> None:
    """Connect a machine without a network, and install the SSH keys of the run."""
    access = identity.access
    guest = machine.guest
    guest.write_text("/root/.ssh/authorized_keys", f"{access.authorized_key}\n")
    guest.write_text("/etc/ssh/ssh_host_ed25519_key", access.host_private_key)
    guest.write_text("/etc/ssh/ssh_host_ed25519_key.pub", f"{access.host_public_key}\n")
    guest.output_of("chmod", "600", "/root/.ssh/authorized_keys", "/etc/ssh/ssh_host_ed25519_key")
    guest.output_of("sh", "-c", _ONLINE)
    guest.output_of("systemctl", "restart", "ssh")
