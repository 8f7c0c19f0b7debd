"""What runs on a node: containerd's images, and systemd's units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.expect.claim import claim

if TYPE_CHECKING:
    from harness.evidence import Evidence


def image_present(evidence: Evidence, reference: str) -> None:
    """Expect containerd to have the image."""
    images = evidence.container_images
    claim(
        reference in images,
        f"containerd was expected to have '{reference}', but has {images}.",
        evidence,
    )


def image_absent(evidence: Evidence, reference: str) -> None:
    """Expect containerd not to have the image."""
    claim(
        reference not in evidence.container_images,
        f"containerd was expected to have '{reference}' no longer, but has it.",
        evidence,
    )


def unit_state(evidence: Evidence, unit: str, *, active: str) -> None:
    """Expect a systemd unit in the active state `active`."""
    seen = evidence.unit_states.get(unit)
    claim(
        seen == active,
        f"The unit '{unit}' was expected to be '{active}', but is '{seen}'.",
        evidence,
    )
