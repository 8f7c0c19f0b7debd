"""Reads the messages of NVIDIA's driver in the kernel's log, by the table in `driver_words`."""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .driver_words import KERNEL_WORDS, LOADED, TOOL_WORDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .driver_words import DriverWords

_NVRM = re.compile(r"(?:^|[\s\]:])NVRM:?(?:\s(?P<said>.*)|$)")
_PREFIX = re.compile(
    r"^(?:.*?\bkernel: )?\s*(?:<\d+>)?(?:[a-z]+ *:[a-z]+ *: )?(?:\d{4}-\d\d-\d\dT\S+ )?"
    r"(?:\[(?:[\d. +<>-]+| *[CT]\d+|[A-Z][a-z]{2}[ \d][^\]]*)\]\s*)*"
)
"""The text that `dmesg` or the journal prints before a message; further lines of the message are indented.

The text consists of the facility and level, the time, and the thread or processor
(`CONFIG_PRINTK_CALLER`)."""
_LONGEST_LINE = 4096
_OF_DRIVER = re.compile(
    r"(?:module )?nvidia[\w-]*(?:\[\d+\])?(?: [0-9a-f:.]+)?: |nvidia-peermem \w+:\d+\b|"
    r"\[drm[^\n]*\[nvidia-drm\]|\[nvidia-vgpu-vfio\] |"
    # Matches the kernel's reports about a hung thread, and about the code that ran during a crash.
    r"INFO: task (?:nvidia|nv_queue|irq/\d+-nvidia)|(?:R?IP: |pc : )[^\n]*\[nvidia"
)
_TELLS_ERROR = re.compile(
    r"error|fail|fatal|invalid|reject|refus|denied|disagrees|unknown|could not|can ?not|can't|"
    r"unable|lost|time[d-]? ?out|uncorrect|corrupt|missing|duplicate|bad |abort|SXid|mismatch|"
    r"(?<!de)fault|halted|not ready|giving up|is full|storm|exception|blacklist|exclude|blocked|"
    r"\+0x[0-9a-f]+/0x",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class DriverMessage:
    """A message of the driver; `line` is the message's first line, as logged.

    `words` is None if the table does not contain the message. `releases` contains the last driver
    release that was loaded before the message, and the first driver release that was loaded after
    the message.
    """

    line: str
    words: DriverWords | None
    fields: Mapping[str, str]
    releases: frozenset[str]

    @property
    def condemns_node(self) -> bool:
        return self.words is not None and self.words.condemns_node

    def is_of(self, version: str | None) -> bool:
        """Return whether only the release `version` can have logged the message.

        If `version` is None, the result is true. The kernel's log covers the whole boot, so it may
        contain messages of a driver that was replaced during the boot. A message without a version
        that was logged between the loads of two releases may be from either release.
        """
        said_by = self.fields.get("version")
        known = self.releases if said_by is None else {said_by}
        return version is None or known <= {version}

    def describe(self) -> str:
        """Return the message's meaning and a remedy, or the line itself if the message is unknown."""
        if self.words is None:
            return f"The driver logged '{self.line}', an unknown message."
        meaning = self.words.meaning.format_map(defaultdict(lambda: "?", self.fields))
        return f"{meaning} {self.words.remedy}".rstrip()


def parse_messages(log: str) -> tuple[DriverMessage, ...]:
    """Return the driver's messages in the kernel's log, in order.

    A line with an unknown text is a message if the line is from the driver's resource manager
    (`NVRM`). If a line with an unknown text is from another part of the driver, it is a message
    only if it contains a word such as `error`.
    """
    lines = [(line, said) for line in log.splitlines() if (said := _said(line)) is not None]
    text = "\n".join(said for _, said in lines)
    found: list[tuple[str, DriverWords | None, dict[str, str]]] = []
    number = start = 0
    while number < len(lines):
        line, said = lines[number]
        words, fields, size = _match(text, start)
        if words is not None or _NVRM.search(line[:_LONGEST_LINE]) or _TELLS_ERROR.search(said):
            found.append((line.strip(), words, fields))
        for _, each in lines[number : number + size]:
            start += len(each) + 1
        number += size
    return _with_releases(found)


def find_tool_words(output: str) -> DriverWords | None:
    """Return the table's entry for a known text in the output of a driver's program, or None."""
    return next((words for words in TOOL_WORDS if words.pattern.search(output)), None)


def _said(line: str) -> str | None:
    """Return the driver's text in a line, with single blanks, or None if the line has no such text."""
    # The kernel's own lines are shorter; matching a longer line would take a long time.
    line = line[:_LONGEST_LINE]
    found = _NVRM.search(line)
    said = (found["said"] or "") if found is not None else _PREFIX.sub("", line)
    if found is None and _OF_DRIVER.match(said) is None:
        return None
    return " ".join(said.split())


def _match(text: str, start: int) -> tuple[DriverWords | None, dict[str, str], int]:
    """Return the entry that matches at `start`, the match's fields, and the number of matched lines."""
    for words in KERNEL_WORDS:
        match = words.pattern.match(text, start)
        if match is not None:
            fields = {name: value for name, value in match.groupdict().items() if value}
            return words, fields, 1 + match[0].rstrip().count("\n")
    return None, {}, 1


def _with_releases(
    found: Sequence[tuple[str, DriverWords | None, dict[str, str]]],
) -> tuple[DriverMessage, ...]:
    loads = [number for number, (_, words, _) in enumerate(found) if words is LOADED]
    versions = [found[number][2]["version"] for number in loads]
    messages = []
    for number, (line, words, fields) in enumerate(found):
        after = bisect.bisect_right(loads, number)
        releases = frozenset(versions[max(after - 1, 0) : after + 1])
        messages.append(DriverMessage(line=line, words=words, fields=fields, releases=releases))
    return tuple(messages)
