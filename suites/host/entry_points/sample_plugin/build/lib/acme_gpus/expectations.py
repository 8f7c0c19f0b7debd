"""Expectations on nodes with Acme's GPUs."""

from __future__ import annotations

from harness.api import AdditionalEvidence, Evidence, NodeExpectation, require


def _firmware_current(evidence: Evidence) -> str:
    version = (evidence.file("/proc/acme/firmware") or "").strip()
    require(
        version == "7",
        f"Firmware 7 was expected on Acme's GPUs, but '/proc/acme/firmware' has {version!r}. "
        "Run `acme-update`.",
        evidence,
    )
    return "Acme's GPUs have firmware 7."


FIRMWARE = NodeExpectation(
    name="acme-firmware",
    words="Acme's GPUs have current firmware",
    judge=_firmware_current,
    evidence=AdditionalEvidence(
        files=["/proc/acme/firmware"], commands={"acme-uptime": ["cat", "/proc/uptime"]}
    ),
)
