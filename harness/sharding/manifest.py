"""The record of what a shard ran, as a file beside its reports; `harness report merge` reads it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pydantic

from harness.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MANIFEST = "shard.json"
"""The record's file in the folder of a shard's reports; written when the run has ended."""

STARTS = "starts.txt"
"""Has a line for each start of the shard: a job may be run again after its node died."""

JUNIT = "junit.xml"
ALLURE = "allure"
DURATIONS = "durations.json"
SHELL_COVERAGE = "coverage.shell"
"""The other reports of a shard; a `bench*.json` that somebody puts beside them is one too."""


@dataclass(frozen=True, kw_only=True)
class ShardManifest:
    """What a shard was to run, what it ran, and how long it took.

    `collection_sha256` is the digest of all tests of the run, by which shards of different runs
    are told apart. `root` is the folder of the tests' configuration. `first_test_s` are the seconds from the start to the first test's own code,
    after its fixtures. `ran` are the tests that have a result.
    """

    schema: Literal[1] = 1
    number: int
    count: int
    collection_sha256: str
    collected: int
    tests: tuple[str, ...]
    ran: tuple[str, ...]
    starts: int
    host: str
    root: str
    started: str
    seconds: float
    first_test_s: float | None
    exit_status: int


def digest_of(test_ids: Iterable[str]) -> str:
    """Return the digest of a set of tests, in whatever order they are."""
    return hashlib.sha256("\n".join(sorted(test_ids)).encode(errors="surrogatepass")).hexdigest()


def write_manifest(folder: Path, manifest: ShardManifest) -> None:
    """Write the record beside its place, and rename it there."""
    content = pydantic.TypeAdapter(ShardManifest).dump_json(manifest, indent=1)
    part = folder / f".{MANIFEST}"
    part.write_bytes(content + b"\n")
    part.replace(folder / MANIFEST)


def read_manifest(folder: Path) -> ShardManifest:
    """Return the record of the reports in `folder`; raises BadInputError that names the file."""
    path = folder / MANIFEST
    try:
        return pydantic.TypeAdapter(ShardManifest).validate_json(path.read_bytes())
    except FileNotFoundError:
        starts = starts_of(folder)
        raise BadInputError(
            f"The shard was started {_times(starts)}, but wrote no '{MANIFEST}': its job ended "
            "before the tests did. Run it again."
            if starts
            else f"There is no '{MANIFEST}' here; give folders that `pytest --report-dir` wrote.",
            source=str(folder),
        ) from None
    except OSError as error:
        raise BadInputError(f"It can't be read: {error.strerror}.", source=str(path)) from error
    except pydantic.ValidationError as error:
        slip = error.errors(include_url=False)[0]
        raise BadInputError(
            f"{slip['msg']}.", source=str(path), key=".".join(map(str, slip["loc"])) or None
        ) from error


def note_start(folder: Path, line: str) -> int:
    """Record a start of the shard, and return how many there were with this one."""
    with (folder / STARTS).open("a") as file:
        file.write(f"{line}\n")
    return starts_of(folder)


def starts_of(folder: Path) -> int:
    """Return how often the shard was started."""
    try:
        return len((folder / STARTS).read_text().splitlines())
    except FileNotFoundError:
        return 0


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
