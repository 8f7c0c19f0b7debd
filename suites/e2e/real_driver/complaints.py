"""What the driver logs when it doubts an answer of the emulated GPU, and what it asks that no header names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMPLAINT = re.compile(r"NVRM:.*(?:Assertion failed|Memory corruption|Check failed)")

#: Complaints that say nothing of an answer, by a word of theirs, with the reason.
HARMLESS: Mapping[str, str] = {
    "rmapiControlCacheSet": (
        "The driver's cache of answers does not have the object that was asked. It asks again the next time."
    ),
}

#: Commands that no header names, and that the device refuses, with who asks.
UNNAMED: Mapping[str, str] = {
    "0x20808161": "`nvidia-smi -q` of 535, through the open modules; it does without an answer.",
}


def complaints_in(kernel_log: str) -> list[str]:
    """Return the lines in which the driver complains of an answer, without the harmless ones."""
    return [
        line
        for line in kernel_log.splitlines()
        if _COMPLAINT.search(line) and not any(word in line for word in HARMLESS)
    ]
