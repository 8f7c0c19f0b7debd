"""Common causes of failures, found in the evidence of a node, with what to do about each; pure."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Where causes show, the most telling first.
_SOURCES = (
    "files/var/log/azure/cluster-provision.log",
    "files/var/log/cloud-init-output.log",
    "commands/journal",
    "commands/dmesg",
    "host/serial.log",
    "files/var/log/cloud-init.log",
)
#: The end of a file is read, since a node that goes on after a failure prints the same again.
_MOST_BYTES = 2 << 20
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")
_PREFIX = re.compile(
    r"^(?:\[\s*\d+\.\d+\]\s*|[A-Z][a-z]{2}\s+\d+ [\d:.]+ \S+ |\d{4}-\d\d-\d\d[T ][\d:.,+-]+ \S+ )"
)
_ERROR_LINE = re.compile(
    r"\b(error|failed|failure|fatal|cannot|can't|unable to|panic|traceback)\b", re.IGNORECASE
)
_HARMLESS = re.compile(
    r"0 errors|errors=remount|error_log|no error|ERST|BERT|EDAC|failed_units|without errors|"
    r"Condition check resulted|RAS: Correctable",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A common cause: the pattern by which it shows in a log, its name, and the remedy."""

    name: str
    pattern: re.Pattern[str]
    remedy: str


@dataclass(frozen=True, kw_only=True)
class FoundCause:
    """A cause with the line that shows it and the file of that line."""

    cause: Cause
    line: str
    source: str

    def sentence(self) -> str:
        """Return what the short summary says; the name comes first, since the line may be cut."""
        return f"{self.cause.name}: {self.line}"


def _cause(name: str, pattern: str, remedy: str) -> Cause:
    return Cause(name=name, pattern=re.compile(pattern, re.IGNORECASE), remedy=remedy)


CAUSES = (
    _cause(
        "kernel panic",
        r"Kernel panic - not syncing",
        "read the lines above it in host/serial.log",
    ),
    _cause(
        "no space on the guest's disk",
        r"No space left on device",
        "`df -h` in the machine shows which file system is full; make the image's disk larger",
    ),
    _cause(
        "the guest ran out of memory",
        r"Out of memory: Killed process|invoked oom-killer|Cannot allocate memory",
        "give the node more 'memory_mib', or find what takes it in commands/dmesg",
    ),
    _cause(
        "dpkg is locked by another process",
        r"Could not get lock /var/lib/(dpkg|apt)|dpkg frontend lock|is another process using it",
        "wait for apt's own services (unattended-upgrades, apt-daily) before installing",
    ),
    _cause(
        "the kernel's headers are missing",
        r"kernel headers for (kernel|target) .* (cannot|can't) be found|Your kernel headers for kernel",
        "install linux-headers of the running kernel, or boot a kernel that has them",
    ),
    _cause(
        "the guest's clock is wrong",
        r"certificate (is not yet valid|has expired)|Release file .* is not valid yet|"
        r"not valid yet \(invalid for another",
        "compare `date` in the machine with the host's; look at its time service",
    ),
    _cause(
        "a name can't be resolved",
        r"Temporary failure in name resolution|Could not resolve host|Temporary failure resolving|"
        r"no such host",
        "machines have no network beyond the host; serve it by the fixture `registry` or `host_ports`",
    ),
    _cause(
        "cloud-init can't read its user-data",
        r"Failed loading yaml blob|Invalid cloud-config provided|Failed at merging in cloud config",
        "check the user-data as YAML: `cloud-init schema --system` in the machine names the line",
    ),
    _cause(
        "systemd went into emergency mode",
        r"You are in emergency mode",
        "a file system of /etc/fstab is missing or damaged; see host/serial.log",
    ),
    _cause(
        "the GPU is lost",
        r"GPU has fallen off the bus|NVRM: Xid .*: 79\b|GPU is lost",
        "look at host/*-trace.txt for the last access, and at the GPU's script in the test",
    ),
)


def explain(folder: Path) -> list[str]:
    """Return sentences on why the node of this evidence failed, the most telling first.

    A common cause with its remedy; the failed step of provisioning; each failed unit with its last line.
    Where there is none of them, the first line with which the guest reports an error.
    """
    found = find_cause(folder)
    sentences = [] if found is None else [found.sentence(), f"remedy: {found.cause.remedy}"]
    sentences += _failed_steps(folder)
    sentences += _failed_units(folder)
    if not sentences and (line := first_error_line(folder)):
        sentences.append(f"the guest's first error: {line}")
    return sentences


def _failed_steps(folder: Path) -> Iterator[str]:
    # What is in the evidence may be damaged, and this must not hide the failure itself.
    with contextlib.suppress(HarnessError, OSError):
        outcome = Evidence(folder).outcome
        for step in () if outcome is None else outcome.steps:
            if step.status in {"failed", "error"}:
                detail = "" if step.detail is None else f": {step.detail}"
                yield f"step '{step.name}' failed{detail}"
        if outcome is not None and outcome.error:
            yield f"provisioning ended with {outcome.exit_code}: {outcome.error}"


def _failed_units(folder: Path) -> Iterator[str]:
    listed = folder / "commands/failed-units"
    if not listed.is_file():
        return
    journal = next((lines for name, lines in _logs(folder) if name == "commands/journal"), [])
    for words in map(str.split, listed.read_text(errors="replace").splitlines()):
        if words:
            unit = words[0]
            name = unit.removesuffix(".service")
            own = [line for line in journal if unit in line or line.startswith(f"{name}[")]
            said = next((line for line in reversed(own) if not line.startswith("systemd[")), None)
            said = said or (own[-1] if own else "the journal has no line of it")
            yield f"unit '{unit}' failed: {said}"


def find_cause(folder: Path) -> FoundCause | None:
    """Return the first of the common causes that the evidence in `folder` shows, or None."""
    for cause in CAUSES:
        for name, lines in _logs(folder):
            for line in lines:
                if cause.pattern.search(line):
                    return FoundCause(cause=cause, line=line, source=name)
    return None


def first_error_line(folder: Path) -> str | None:
    """Return the first line with which the guest reports an error, or None."""
    for _, lines in _logs(folder):
        for line in lines:
            if _ERROR_LINE.search(line) and not _HARMLESS.search(line):
                return line
    return None


def _logs(folder: Path) -> Iterator[tuple[str, list[str]]]:
    for name in _SOURCES:
        path = folder / name
        if path.is_file():
            text = path.read_bytes()[-_MOST_BYTES:].decode(errors="replace")
            yield name, [stripped for line in text.splitlines() if (stripped := _plain(line))]


def _plain(line: str) -> str:
    """Return a line without colours and without the time and host that syslog puts first."""
    return _PREFIX.sub("", _CONTROL.sub("", line)).strip()
