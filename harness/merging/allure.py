"""Allure's result files: those of all shards in one folder, each test once."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from harness.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_RESULT = "-result.json"
_ENVIRONMENT = "environment.properties"


def merge_results(folders: Iterable[Path], to: Path) -> int:
    """Copy the results of the folders to `to`, and return how many tests they are of.

    Names of Allure's files are unique, but for those of a whole run: of the environments, where a name has
    different values all of them are listed. Where a test was run again, Allure knows the earlier result as a
    retry by its history id; of a test in two folders only the later result is copied. Raises
    BadInputError that names a file that is no result.
    """
    latest: dict[str, tuple[float, Path]] = {}
    environment: dict[str, dict[str, None]] = {}
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for folder in folders:
        if not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            if path.is_symlink() or not path.is_file():
                # Allure writes none, and a link would copy a file of this host.
                continue
            if path.name.endswith(_RESULT):
                history, stop = _read(path)
                known = latest.get(history)
                if known is not None and known[1].parent != folder:
                    if known[0] >= stop:
                        continue
                    (to / known[1].name).unlink()
                latest[history] = (stop, path)
            elif path.name == _ENVIRONMENT:
                for line in path.read_text().splitlines():
                    name, _, value = line.partition("=")
                    environment.setdefault(name, {})[value] = None
                continue
            shutil.copyfile(path, to / path.name)
    if environment:
        lines = [f"{name}={', '.join(values)}\n" for name, values in environment.items()]
        (to / _ENVIRONMENT).write_text("".join(lines))
    return len(latest)


def _read(path: Path) -> tuple[str, float]:
    try:
        result = json.loads(path.read_text())
        return str(result.get("historyId") or result["uuid"]), float(result.get("stop", 0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInputError(f"It is no result of Allure: {error!r}.", source=str(path)) from error
