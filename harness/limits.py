"""Limits on how much data or work a guest, file, server or shell script may impose on the harness.

Each limit has a name, and an environment variable that sets another value: a person who trusts a
source can raise the limit for one run. `docs/reference/limits.md` is generated from the limits in
this module.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from harness.errors import BadInputError, HarnessError

_PREFIX = "HARNESS_LIMIT_"


class Unit(Enum):
    """The unit of a limit; the value of a member is the name of the unit in messages."""

    KIB = "KiB"
    MIB = "MiB"
    ENTRIES = "entries"
    SECONDS = "seconds"
    LEVELS = "levels"
    DIGITS = "digits"
    TIMES = "times"

    @property
    def bytes(self) -> int:
        """Return the number of bytes in one unit, or 1 for a unit that is not a size."""
        if self is Unit.KIB:
            return 1 << 10
        return 1 << 20 if self is Unit.MIB else 1


class LimitError(HarnessError):
    """A source of data or work, such as a guest or a file, exceeds a limit."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A limit on `what`, in `unit`; an environment variable can replace the value `default`.

    `name` consists of words joined by hyphens; it ends with the unit if the unit is a size or a
    time.
    """

    name: str
    default: int
    unit: Unit
    what: str

    @cached_property
    def variable(self) -> str:
        """The name of the environment variable that replaces the default, in the limit's unit."""
        return _PREFIX + self.name.upper().replace("-", "_")

    @property
    def value(self) -> int:
        """The limit's value, in `unit`; raises BadInputError if the value of the variable is invalid."""
        written = os.environ.get(self.variable, "").strip()
        if not written:
            return self.default
        if not (written.isascii() and written.isdigit() and len(written) <= 12 and int(written)):
            raise BadInputError(
                (
                    f"A whole number of {self.unit.value} of at least 1 was expected, but got "
                    f"{written!r}."
                ),
                source=self.variable,
            )
        return int(written)

    @property
    def bytes(self) -> int:
        """The limit in bytes if `unit` is a size, else the same number as `value`."""
        return self.value * self.unit.bytes

    def error(self, source: str, *, remedy: str = "") -> LimitError:
        """Return the error for a source that exceeds the limit; `remedy` is a sentence for the message."""
        return LimitError(
            f"{source}: {self.what}: more than {self.value} {self.unit.value}, which is the limit "
            f"'{self.name}'.{remedy and ' '}{remedy} If you trust the source, set {self.variable} to a "
            "larger number."
        )

    def check(self, amount: float, source: str) -> None:
        """Raise LimitError if `amount`, in the limit's unit, is more than the limit."""
        if amount > self.value:
            raise self.error(source)

    def check_bytes(self, amount: int, source: str) -> None:
        """Raise LimitError if `amount`, in bytes, is more than the limit."""
        if amount > self.bytes:
            raise self.error(source)


AGENT_BACKLOG = Limit(
    name="agent-backlog-mib",
    default=64,
    unit=Unit.MIB,
    what="the frames that a guest's agent sent for one request, and that are still unread",
)
COMMAND_OUTPUT = Limit(
    name="command-output-mib",
    default=48,
    unit=Unit.MIB,
    what="the output of one command in a guest",
)
GUEST_FILE = Limit(
    name="guest-file-mib",
    default=128,
    unit=Unit.MIB,
    what="one file that is read from a guest",
)
CONSOLE = Limit(
    name="console-mib",
    default=512,
    unit=Unit.MIB,
    what="the output of a guest on its serial console",
)
CONSOLE_RECORDING = Limit(
    name="console-recording-mib",
    default=512,
    unit=Unit.MIB,
    what="the recording of a serial console",
)
MACHINE_EVENTS = Limit(
    name="machine-events",
    default=50_000,
    unit=Unit.ENTRIES,
    what="the events of one machine",
)
EVIDENCE = Limit(
    name="evidence-mib",
    default=256,
    unit=Unit.MIB,
    what="the evidence that one collection unpacks",
)
EVIDENCE_ENTRIES = Limit(
    name="evidence-entries",
    default=50_000,
    unit=Unit.ENTRIES,
    what="the files and commands of one collection of evidence",
)
EVIDENCE_FILE = Limit(
    name="evidence-file-mib",
    default=16,
    unit=Unit.MIB,
    what="one file of evidence that is read",
)
ARCHIVE = Limit(
    name="archive-mib",
    default=256,
    unit=Unit.MIB,
    what="an unpacked archive that is more than 32 times as large as its file",
)
ARCHIVE_ENTRIES = Limit(
    name="archive-entries",
    default=200_000,
    unit=Unit.ENTRIES,
    what="the files and folders of an archive",
)
FILE_SYSTEM_ENTRIES = Limit(
    name="file-system-entries",
    default=1_000_000,
    unit=Unit.ENTRIES,
    what="the files of one file system of a node",
)
PATH_LEVELS = Limit(
    name="path-levels",
    default=100,
    unit=Unit.LEVELS,
    what="folders within folders",
)
TIMELINE_ENTRIES = Limit(
    name="timeline-entries",
    default=3_000,
    unit=Unit.ENTRIES,
    what="the units or steps of one timeline",
)
JSON = Limit(
    name="json-mib",
    default=4,
    unit=Unit.MIB,
    what="one JSON document",
)
DATA_FILE = Limit(
    name="data-file-kib",
    default=256,
    unit=Unit.KIB,
    what="one YAML file",
)
DATA_LEVELS = Limit(
    name="data-levels",
    default=100,
    unit=Unit.LEVELS,
    what="the nesting of JSON or YAML",
)
DATA_DIGITS = Limit(
    name="data-digits",
    default=300,
    unit=Unit.DIGITS,
    what="a number in JSON or YAML",
)
STORE_SECONDS = Limit(
    name="store-seconds",
    default=7200,
    unit=Unit.SECONDS,
    what="one pull, push or list of the shared store",
)
STORE_ANSWER_MIB = Limit(
    name="store-answer-mib",
    default=4,
    unit=Unit.MIB,
    what="a manifest, a description or a page of tags of the shared store",
)
STORE_TAGS = Limit(
    name="store-tags",
    default=100_000,
    unit=Unit.ENTRIES,
    what="the tags of a repository of the shared store",
)
STORE_ARTIFACT_MIB = Limit(
    name="store-artifact-mib",
    default=64 << 10,
    unit=Unit.MIB,
    what="the files of an artifact of the shared store, with their holes",
)
STORE_ARTIFACT_FILES = Limit(
    name="store-artifact-files",
    default=4096,
    unit=Unit.ENTRIES,
    what="the files that the description of an artifact of the shared store names",
)
STORE_DATA_TIMES = Limit(
    name="store-data-times",
    default=50,
    unit=Unit.TIMES,
    what="the data of an artifact of the shared store, without its holes, compared with its packed size",
)
STORE_OTHER_MIB = Limit(
    name="store-other-mib",
    default=256,
    unit=Unit.MIB,
    what="the other files of an artifact of the shared store, such as the evidence of a bake",
)
STORE_OTHER_FILES = Limit(
    name="store-other-files",
    default=10_000,
    unit=Unit.ENTRIES,
    what="the other files of an artifact of the shared store",
)
DOWNLOAD_MIB = Limit(
    name="download-mib",
    default=64 << 10,
    unit=Unit.MIB,
    what="a download",
)
DOWNLOAD_UNKNOWN_MIB = Limit(
    name="download-unknown-mib",
    default=256,
    unit=Unit.MIB,
    what="a download whose size the server does not announce",
)
DOWNLOAD_LIST_MIB = Limit(
    name="download-list-mib",
    default=4,
    unit=Unit.MIB,
    what="a list of digests, or its signature",
)
REGISTRY_UPLOAD_MIB = Limit(
    name="registry-upload-mib",
    default=4096,
    unit=Unit.MIB,
    what="the data that clients push into a test's registry",
)
REGISTRY_REQUESTS = Limit(
    name="registry-requests",
    default=20_000,
    unit=Unit.ENTRIES,
    what="the requests to a test's registry",
)
REGISTRY_CONNECTIONS = Limit(
    name="registry-connections",
    default=256,
    unit=Unit.ENTRIES,
    what="the connections to a test's registry at one time",
)
REPORT_FILE_MIB = Limit(
    name="report-file-mib",
    default=64,
    unit=Unit.MIB,
    what="the size of one file among a shard's reports",
)
REPORT_ELEMENTS = Limit(
    name="report-elements",
    default=1_000_000,
    unit=Unit.ENTRIES,
    what="the XML elements and attributes of a shard's JUnit report",
)
REPORT_LEVELS = Limit(
    name="report-levels",
    default=32,
    unit=Unit.LEVELS,
    what="the depth of XML elements in a shard's JUnit report",
)
COVERAGE_FILE_MIB = Limit(
    name="coverage-file-mib",
    default=64,
    unit=Unit.MIB,
    what="the coverage of shell code of one run",
)
COVERAGE_ENTRIES = Limit(
    name="coverage-entries",
    default=20_000,
    unit=Unit.ENTRIES,
    what="the scripts, the contexts, and the script-context pairs in the coverage of one run",
)
COVERAGE_LINES = Limit(
    name="coverage-lines",
    default=2_000_000,
    unit=Unit.ENTRIES,
    what="the lines of all scripts in the coverage of one run, in each context",
)
TRACE_KIB = Limit(
    name="trace-kib",
    default=64,
    unit=Unit.KIB,
    what="one part of a traceback in reports",
)
CAPTURED_KIB = Limit(
    name="captured-kib",
    default=1024,
    unit=Unit.KIB,
    what="a test's captured output in reports",
)
ATTACHMENT_MIB = Limit(
    name="attachment-mib",
    default=64,
    unit=Unit.MIB,
    what="the size of one attachment in Allure's results",
)
SHARED_FILE = Limit(
    name="shared-file-kib",
    default=64,
    unit=Unit.KIB,
    what="the size of a lease, a reservation or a record in a folder that processes share",
)
SHARED_FOLDER = Limit(
    name="shared-folder-entries",
    default=10_000,
    unit=Unit.ENTRIES,
    what="files of a folder that processes share",
)
SHELL_OUTPUT = Limit(
    name="shell-output-mib",
    default=48,
    unit=Unit.MIB,
    what="the output and the reports of shell code",
)

GPU_MEMORY = Limit(
    name="gpu-memory-mib",
    default=256,
    unit=Unit.MIB,
    what="the content that a guest keeps in the memory of one emulated GPU",
)


def all_limits() -> list[Limit]:
    """Return every limit, by name."""
    return sorted(
        (value for value in globals().values() if isinstance(value, Limit)),
        key=lambda limit: limit.name,
    )
