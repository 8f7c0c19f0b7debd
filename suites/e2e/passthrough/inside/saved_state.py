"""Makes the saved state from which the nodes of `suites/passthrough` start.

usage: python3 -m suites.e2e.passthrough.inside.saved_state IMAGE MEMORY_MIB SLOTS TIMEOUT_MULTIPLIER
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from harness.lab import Lab
from harness.lab.saved_states import booted, cloud_init_done
from harness.settings import AcceleratorOption, GpuSource, Settings

if TYPE_CHECKING:
    from harness.progress import ProgressEvent


def say(event: ProgressEvent) -> None:
    sys.stdout.write(f"{event.subject}: {event.message}\n")
    sys.stdout.flush()


def main() -> None:
    image, memory_mib, slots, multiplier = sys.argv[1:]
    settings = Settings(
        image=image,
        accelerator=AcceleratorOption.KVM,
        gpu_source=GpuSource.HOST,
        timeout_multiplier=float(multiplier),
    )
    with Lab.open(settings, say) as lab:
        state = booted(lab.node_image(), memory_mib=int(memory_mib), slots=int(slots))
        lab.checkpoint_builder.ensure_checkpoint(cloud_init_done(state))


if __name__ == "__main__":
    main()
