"""The PCI addresses of the simulated host's GPUs."""

from __future__ import annotations

GPU = "0000:65:00.0"
AUDIO = "0000:65:00.1"
SECOND = "0000:66:00.0"
