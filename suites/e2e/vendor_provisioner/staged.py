"""The saved state from which the vendor's nodes start, with the vendor's mirror and a staged driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.lab.saved_states import source_parts
from harness.provisioner import BAKE, NodeFact, runner_file
from harness.provisioner.yaml_file import read_provisioner
from suites.e2e.guest_script import shell

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.api import LabMachine, SavedState

FOLDER = Path(__file__).parent
DECLARATION = FOLDER / "provisioner.yaml"
_STAGE_KVM_S = 120.0
#: Like NVIDIA's, the run-file unpacks itself and starts its installer; its payload is the driver
#: image's.
_MIRROR = r"""
set -e
mkdir -p /srv/mirror/tools/DEBIAN /srv/mirror/image
cd /srv/mirror/image
tar -xf /usr/lib/gpu-node/driver-image.tar
for blob in blobs/sha256/*; do tar -xf $blob opt/gpu 2>/dev/null || true; done
cat >header <<'RUN'
#!/bin/sh
folder=$(mktemp -d)
tail -n +6 "$0" | tar -xz -C "$folder"
sh "$folder/gpu/nvidia-installer" "$@"
exit
RUN
tar -C opt -czf payload gpu
cat header payload >../NVIDIA-Linux-x86_64-@VERSION@.run
cd ..
printf 'Package: halyard-gpu-tools\nVersion: 1.4\nArchitecture: all\nMaintainer: Halyard\nDescription: tools\n' \
  >tools/DEBIAN/control
dpkg-deb --build tools halyard-gpu-tools.deb
rm -r tools image
sha256sum *.run *.deb >SHA256SUMS
"""


def staged(version: str) -> Callable[[SavedState], SavedState]:
    """Return a function that derives the state in which the unchanged provisioner staged the driver."""
    provisioner = read_provisioner(DECLARATION)

    def make(machine: LabMachine) -> None:
        deadline = machine.deadline(_STAGE_KVM_S)
        files = provisioner.guest_files({NodeFact.DRIVER_VERSION: version}, {})
        for file in (runner_file(), *files):
            machine.agent.write_bytes(file.path, file.content, deadline, file.mode)
        machine.guest.output_of(
            *shell(_MIRROR.replace("@VERSION@", version)), timeout_s=deadline.remaining_s()
        )
        machine.guest.output_of(*provisioner.guest_command(BAKE), timeout_s=deadline.remaining_s())

    def derive(state: SavedState) -> SavedState:
        parts = {**source_parts(make), "provisioner": provisioner.digest, "version": version}
        return state.derive("halyard-staged", make, parts)

    return derive
