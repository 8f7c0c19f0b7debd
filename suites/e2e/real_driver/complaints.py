"""The driver's log lines about wrong answers of the emulated GPU and about undocumented commands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMPLAINT = re.compile(r"NVRM:.*(?:Assertion failed|Memory corruption|Check failed)")

#: Complaints that do not concern an answer, by a word in the complaint, with the reason.
HARMLESS: Mapping[str, str] = {
    "rmapiControlCacheSet": (
        "The driver's cache of answers lacks the queried object. The driver queries the GPU again next time."
    ),
}

#: Commands that no header names and that the device refuses, with the program that sends them.
UNNAMED: Mapping[str, str] = {
    "0x20808161": "`nvidia-smi -q` of 535 with the open modules; it continues without an answer.",
}


def complaints_in(kernel_log: str) -> list[str]:
    """Return the lines in which the driver complains about an answer, without harmless lines."""
    return [
        line
        for line in kernel_log.splitlines()
        if _COMPLAINT.search(line) and not any(word in line for word in HARMLESS)
    ]
