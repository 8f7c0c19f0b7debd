"""The record of a shard's tests: a file beside the shard's reports, for `harness report merge`."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pydantic

from harness.errors import BadInputError
from harness.foreign_json import ForeignJsonError, parse_json
from harness.limits import REPORT_FILE_MIB
from harness.sharding import MOST_SHARDS
from harness.sharding.report_file import read_report, write_report
from harness.visible_text import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MANIFEST = "shard.json"
"""The file with the record, in the folder of a shard's reports; written when the run has ended."""

_START = "start-"
_MOST_STARTS = 999_999
_SHOWN_BYTES = 200
_NUMBER = re.compile(r"[0-9]{1,6}")

JUNIT = "junit.xml"
ALLURE = "allure"
DURATIONS = "durations.json"
SHELL_COVERAGE = "coverage.shell"
"""The names of the other reports; each start of a shard writes its reports into its own folder.

If a scheduler starts a job again after it lost the job's node, processes of the first start may still
write reports.
A `bench*.json` beside the record is a report too.
"""


@dataclass(frozen=True, kw_only=True)
class ShardManifest:
    """The tests of a shard, the tests that ran, and the times of the run.

    `repeated` are the tests that ran more than once. `junit_prefix` is the value of pytest's option
    `--junit-prefix`. `collection_sha256` is the digest of all test ids of the run; a merge of
    reports compares the digests to detect shards of different runs. `start` is the number of this
    shard's latest start. `root` is the folder with the tests' configuration. `first_test_s` is the
    time in seconds from the shard's start until the fixtures of the first test are set up and the
    test's function begins. `ran` are the tests that have a result.
    """

    schema: Literal[1] = 1
    number: int = pydantic.Field(ge=1)
    count: int = pydantic.Field(ge=1, le=MOST_SHARDS)
    collection_sha256: str
    collected: int = pydantic.Field(ge=0)
    tests: tuple[str, ...]
    ran: tuple[str, ...]
    start: int = pydantic.Field(ge=1, le=_MOST_STARTS)
    host: str
    root: str
    started: str
    seconds: float = pydantic.Field(allow_inf_nan=False)
    first_test_s: float | None = pydantic.Field(allow_inf_nan=False)
    exit_status: int
    repeated: tuple[str, ...] = ()
    junit_prefix: str = ""


def digest_of(test_ids: Iterable[str]) -> str:
    """Return the digest of a set of test ids; the order of the ids makes no difference."""
    return hashlib.sha256("\n".join(sorted(test_ids)).encode(errors="surrogatepass")).hexdigest()


@functools.cache
def _adapter() -> pydantic.TypeAdapter[ShardManifest]:
    return pydantic.TypeAdapter(ShardManifest)


def write_manifest(folder: Path, manifest: ShardManifest) -> None:
    """Write a shard's record to the file MANIFEST in `folder`."""
    write_report(folder / MANIFEST, _adapter().dump_json(manifest, indent=1) + b"\n")


def read_manifest(folder: Path) -> ShardManifest:
    """Return the shard's record in `folder`.

    Raises BadInputError, which names the file, if the record is missing or invalid.
    """
    path = folder / MANIFEST
    if not path.exists():
        starts = starts_of(folder)
        raise BadInputError(
            f"The shard was started {_times(starts)}, but wrote no '{MANIFEST}': its job ended "
            "before the tests did. Run the shard again."
            if starts
            else f"There is no '{MANIFEST}' here; give folders that `pytest --report-dir` wrote.",
            source=str(folder),
        )
    content = read_report(path)
    try:
        parse_json(content, limit=REPORT_FILE_MIB)
        return _adapter().validate_json(content, strict=True)
    except ForeignJsonError as error:
        raise BadInputError(f"The file is not JSON: {error}.", source=str(path)) from error
    except pydantic.ValidationError as error:
        slips = error.errors(include_url=False)
        slip = next((each for each in slips if each["loc"] == ("schema",)), slips[0])
        said = f"{slip['msg']}."
        if slip["type"] == "literal_error":
            said = (
                f"The file has the format {shortened(repr(slip['input']), _SHOWN_BYTES)}, but this version of "
                f"the harness reads {slip['ctx']['expected']}; merge with the version that ran the shard."
            )
        raise BadInputError(
            said, source=str(path), key=".".join(map(str, slip["loc"])) or None
        ) from error


def begin(folder: Path) -> tuple[int, Path]:
    """Make the folder for the reports of a new start of a shard; return the start's number and the folder.

    If the shard has already finished once, the reports of its earlier starts are removed first.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    earlier = list(folder.glob(f"{_START}*"))
    # Only the process that removes the record also removes the folders of earlier starts: another
    # process may have made the folder of a new start meanwhile.
    with contextlib.suppress(FileNotFoundError):
        (folder / MANIFEST).unlink()
        for each in earlier:
            shutil.rmtree(each, ignore_errors=True)
    number = starts_of(folder)
    while True:
        number += 1
        reports = reports_of(folder, number)
        # If two processes try to create the folder, only one succeeds, even on a network file
        # system.
        with contextlib.suppress(FileExistsError):
            reports.mkdir(mode=0o700)
            return number, reports


def reports_of(folder: Path, start: int) -> Path:
    """Return the folder for the reports of the shard's start with the number `start`."""
    return folder / f"{_START}{start}"


def starts_of(folder: Path) -> int:
    """Return the number of the last start of the shard, or 0 if there was no start."""
    numbers = [path.name.removeprefix(_START) for path in folder.glob(f"{_START}*")]
    # The harness makes no folder with a longer number.
    return max((int(each) for each in numbers if _NUMBER.fullmatch(each)), default=0)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
