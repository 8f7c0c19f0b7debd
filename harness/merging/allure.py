"""Copies the Allure results of all shards into one folder, the results of a test from one shard only."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.sharding.report_file import read_json, read_report, require_own_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_RESULT = "-result.json"
#: The limit for a stop time, in milliseconds since the epoch; it is thousands of years ahead.
_MOST_STOP = 1e15
_ENVIRONMENT = "environment.properties"
#: Files about the whole run that each shard may have, with the same content.
_OF_A_RUN = frozenset({"categories.json", "executor.json"})


def merge_results(folders: Iterable[Path], to: Path) -> int:
    """Copy the results in `folders` to the new folder `to`, and return how many tests have results.

    Names of Allure's files are unique, except for the files about the whole run. If the environment
    files of shards have different values for one name, the new file lists all values. If a test ran
    again in its shard, Allure recognises the earlier result by the history id, and shows the
    earlier result as a retry. If two folders have results of the same test, only the folder with
    the latest result counts for this test. Raises BadInputError, which names the file, for a file
    that is not a result.
    """
    latest: dict[str, tuple[float, list[Path]]] = {}
    environment: dict[str, dict[str, None]] = {}
    to.mkdir(parents=True)
    for folder in folders:
        require_own_folder(folder)
        if not folder.is_dir():
            continue
        own: defaultdict[str, list[tuple[float, Path]]] = defaultdict(list)
        for path in sorted(folder.iterdir()):
            if path.is_symlink() or not path.is_file():
                # Allure writes no links, and copying a link could copy any file of this host.
                continue
            if path.name.endswith(_RESULT):
                history, stop = _read(path)
                own[history].append((stop, path))
                continue
            if path.name == _ENVIRONMENT:
                for name, value in _properties(path):
                    environment.setdefault(name, {})[value] = None
                continue
            _copy(path, to / path.name)
        for history, results in own.items():
            stop = max(each for each, _ in results)
            known_stop, known = latest.get(history, (-1.0, []))
            if known_stop >= stop:
                continue
            for path in known:
                (to / path.name).unlink()
            for _, path in results:
                _copy(path, to / path.name)
            latest[history] = stop, [path for _, path in results]
    if environment:
        lines = [f"{name}={', '.join(values)}\n" for name, values in environment.items()]
        (to / _ENVIRONMENT).write_bytes("".join(lines).encode(errors="backslashreplace"))
    return len(latest)


def _copy(path: Path, to: Path) -> None:
    """Copy a file; raises BadInputError if `to` exists, unless the file is about the whole run."""
    if to.exists() and path.name not in _OF_A_RUN:
        raise BadInputError(
            "Another shard has a file of this name among Allure's results, and only one of the two files "
            "would be kept; run one of the two shards again, so that Allure chooses new names.",
            source=str(path),
        )
    to.write_bytes(read_report(path))


def _properties(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and values in a Java properties file; skip blank lines and comments."""
    for line in read_report(path).decode(errors="replace").splitlines():
        name, sign, value = line.partition("=")
        if sign and not line.startswith(("#", "!")):
            yield name, value


def _read(path: Path) -> tuple[str, float]:
    result = read_json(path)
    if isinstance(result, dict):
        history, stop = result.get("historyId") or result.get("uuid"), result.get("stop", 0)
        if isinstance(history, str) and isinstance(stop, (int, float)) and 0 <= stop < _MOST_STOP:
            return history, stop
    raise BadInputError(
        "The file is not a result of Allure: an object was expected with the keys 'uuid' and 'stop', "
        "which is a time in milliseconds.",
        source=str(path),
    )
