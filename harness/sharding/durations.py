"""The file of recorded durations in pytest-split's format: a JSON object that maps node ids to seconds."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.foreign_files import read_given
from harness.foreign_json import parse_json
from harness.limits import JSON, LimitError
from harness.sharding.report_file import write_report

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def read_durations(path: Path) -> dict[str, float]:
    """Return the duration of each test in seconds, or an empty mapping if there is no file.

    Raises BadInputError if the file is not in pytest-split's format.
    """
    try:
        content = parse_json(read_given(path, limit=JSON))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LimitError) as error:
        raise BadInputError(
            f"The file can't be read as JSON: {str(error).rstrip('.')}.", source=str(path)
        ) from error
    return durations_in(content, source=str(path))


def durations_in(content: object, *, source: str) -> dict[str, float]:
    """Return each test's duration in seconds from the content of a durations file.

    Raises BadInputError for content in another format.
    """
    # Early versions of pytest-split wrote a list of pairs, and later versions still read such a list.
    pairs = list(content.items()) if isinstance(content, dict) else content
    try:
        durations = {str(test_id): float(seconds) for test_id, seconds in pairs}  # type: ignore[attr-defined]
    except (TypeError, ValueError, OverflowError):
        durations = {"": -1.0}
    # NaN can't be sorted, so the shards would not agree on the order of the tests.
    if any(not 0 <= seconds < math.inf for seconds in durations.values()):
        raise BadInputError(
            "An object of node ids and seconds was expected, as pytest-split writes it.",
            source=source,
        )
    return durations


def write_durations(path: Path, durations: Mapping[str, float]) -> None:
    rounded = {test_id: round(seconds, 4) for test_id, seconds in durations.items()}
    write_report(path, json.dumps(rounded, indent=4, sort_keys=True).encode() + b"\n")
