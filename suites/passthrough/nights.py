"""The measurements of the nightly runs on a host: the GPU's facts, and the time of each step.

Each line of the file is one step, as JSON. Lines are only appended, each with a single write, so
the workers of a run can share the file.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import pydantic
from pydantic import Field
from typing_extensions import override

from harness.errors import BadInputError
from harness.lease import make_private_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.api import Node

_FORBID: pydantic.ConfigDict = pydantic.ConfigDict(extra="forbid")
_QUERY = "name,vbios_version,driver_version"
_NOT_ASKED = "unknown"


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """Facts about a GPU from its driver; `unknown` if no driver was queried or the driver lacks a fact."""

    __pydantic_config__ = _FORBID

    model: str = _NOT_ASKED
    vbios: str = _NOT_ASKED
    driver: str = _NOT_ASKED

    @classmethod
    def of_node(cls, node: Node) -> GpuFacts:
        """Query `nvidia-smi` on a node for each fact separately, since an unknown field is an error."""
        found = {}
        for fact, query in zip(("model", "vbios", "driver"), _QUERY.split(","), strict=True):
            result = node.guest.run("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")
            lines = result.stdout.splitlines()
            if result.ok and lines and lines[0].strip():
                found[fact] = lines[0].strip()
        return cls(**found)

    @override
    def __str__(self) -> str:
        return f"{self.model}, VBIOS {self.vbios}, driver {self.driver}"


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """A step of a test, and how many seconds the step took."""

    test: str
    step: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of the file."""

    __pydantic_config__ = _FORBID

    run: str
    date: str
    gpu: GpuFacts
    test: str
    step: str
    seconds: Annotated[float, Field(ge=0)]


_ENTRY = pydantic.TypeAdapter(Entry)


@dataclass(kw_only=True)
class Night:
    """One run of the suites, and the file to which it adds its steps."""

    run: str
    file: Path
    gpu: GpuFacts = field(default_factory=GpuFacts)

    def add(self, one: StepTime) -> None:
        """Add a step to the file."""
        entry = Entry(
            run=self.run,
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            gpu=self.gpu,
            test=one.test,
            step=one.step,
            seconds=round(one.seconds, 3),
        )
        make_private_folder(self.file.parent)
        line = (json.dumps(asdict(entry)) + "\n").encode()
        handle = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)
        finally:
            os.close(handle)


def nights_file(folder: Path) -> Path:
    """Return the file with the measurements of this host, in the evidence folder."""
    return folder / "nights" / f"{platform.node()}.jsonl"


def read_nights(file: Path) -> list[Entry]:
    """Return all entries, the oldest first; raises BadInputError with the number of a bad line."""
    lines = file.read_text().splitlines()
    return [_entry(line, number, file) for number, line in enumerate(lines, start=1)]


def _entry(line: str, number: int, file: Path) -> Entry:
    try:
        return _ENTRY.validate_json(line)
    except pydantic.ValidationError as error:
        raise BadInputError(
            f"Line {number} is not a step of a night: {error.errors()[0]['msg']}. Remove the line, or "
            "the file if earlier nights do not matter.",
            source=str(file),
        ) from error


def table_of(entries: Sequence[Entry], *, run: str) -> str:
    """Return a table of this run's steps and the medians of earlier runs, or "" if it has no steps."""
    mine = [each for each in entries if each.run == run]
    if not mine:
        return ""
    gpu = next((each.gpu for each in reversed(mine) if each.gpu.model != _NOT_ASKED), mine[-1].gpu)
    rows = [("TEST", "STEP", "SECONDS", "EARLIER", "NIGHTS")]
    for each in mine:
        earlier = [
            other.seconds
            for other in entries
            if other.run != run and (other.test, other.step) == (each.test, each.step)
        ]
        median = f"{statistics.median(earlier):.1f}" if earlier else "-"
        rows.append((each.test, each.step, f"{each.seconds:.1f}", median, str(len(earlier))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join([str(gpu), *(line.rstrip() for line in lines)])
