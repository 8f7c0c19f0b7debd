"""Pure functions for a test's title, suites, severity, parameters and history id in Allure."""

from __future__ import annotations

import enum
import hashlib
import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allure_commons.types import LabelType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

#: The number of folders that name the parent suite, such as the two in suites/e2e.
_PARENT_FOLDERS = 2
_SENTENCE = re.compile(r"(?s)(.+?[.!?])(?=\s|$)")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True, kw_only=True)
class TestWords:
    """A test's title in Allure, and the rest of the test's docstring."""

    __test__ = False

    title: str | None
    description: str | None


def docstring_of(item: object) -> str | None:
    """Return the docstring of a test, or None if the test is not a function."""
    return getattr(getattr(item, "function", None), "__doc__", None)


def words_of(docstring: str | None, case: str | None) -> TestWords:
    """Return a test's title (the docstring's first sentence, and the id `case`) and the docstring's rest."""
    text = inspect.cleandoc(docstring or "")
    if not text:
        return TestWords(title=None, description=None)
    first, _, rest = text.partition("\n\n")
    found = _SENTENCE.match(first)
    sentence = found[1] if found else first
    rest = "\n\n".join(part for part in (first[len(sentence) :].strip(), rest.strip()) if part)
    title = " ".join(sentence.split()).rstrip(".")
    return TestWords(
        title=title if case is None else f"{title} [{case}]", description=rest or None
    )


def suites_of(node_id: str) -> dict[str, str]:
    """Return Allure's suite labels for a test, derived from the test's node id.

    The two top folders of the path name the parent suite. The third folder names the suite; if
    there is no third folder, the file names the suite. The other folders, the file and the classes
    name the sub suite.
    """
    # Split at `::` first, since a path may have brackets too.
    path, _, rest_of_id = node_id.partition("::")
    names = rest_of_id.partition("[")[0].split("::")
    *folders, file = path.split("/")
    parent, below = folders[:_PARENT_FOLDERS], folders[_PARENT_FOLDERS:]
    module = re.sub(r"\.[a-z]+$", "", file).removeprefix("test_")
    suite, rest = (
        below[0] if below else module,
        [*below[1:], *([module] if below else []), *names[:-1]],
    )
    labels = {
        LabelType.PARENT_SUITE: "/".join(parent),
        LabelType.SUITE: suite,
        LabelType.SUB_SUITE: " > ".join(rest),
    }
    return {name: value for name, value in labels.items() if value}


def severity_of(path: str, severities: Mapping[str, str]) -> str | None:
    """Return the severity of the innermost folder or file in `severities` that contains the test."""
    fitting = [
        place for place in severities if path == place or path.startswith(f"{place.rstrip('/')}/")
    ]
    return severities[max(fitting, key=len)] if fitting else None


def shown_parameters(
    parameters: Mapping[str, object], *, case: str | None, root: Path
) -> dict[str, str]:
    """Return the parameters of a test as strings that do not depend on the process or the checkout.

    Allure recognises a test in other runs by the returned strings. `case`, pytest's id of the
    parameters, replaces a string that contains a memory address. `root` is the folder of the
    checkout.
    """
    return {
        name: (_text(value) or case or type(value).__qualname__).replace(f"{root}/", "")
        for name, value in parameters.items()
    }


def history_id(full_name: str, parameters: Iterable[tuple[str, str]]) -> str:
    """Return the id by which Allure 2 recognises a test in all runs, whatever the order of parameters.

    Allure 3 makes its own id from the test's full name and parameters.
    """
    parts = [full_name, *(f"{name}={value}" for name, value in sorted(parameters))]
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]


def _text(value: object) -> str | None:
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, (set, frozenset)):
        return ", ".join(sorted(_text(each) or repr(each) for each in value))
    try:
        text = value if isinstance(value, str) else repr(value)
    # The `__repr__` of a class that the tests define may raise any exception.
    except Exception:
        return None
    if isinstance(value, str) or not _ADDRESS.search(text):
        return text
    name = str(getattr(value, "__qualname__", "<"))
    return None if "<" in name else name
