"""Writes Allure's files with short, safe texts; a full disk does not end the run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import allure_commons
import attr
from allure_commons.logger import AllureFileLogger
from typing_extensions import override

from harness.errors import MESSAGE_BYTES
from harness.limits import ATTACHMENT_MIB, TRACE_KIB
from harness.visible_text import shortened, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from allure_commons.model2 import Globals, TestResult, TestResultContainer

_T = TypeVar("_T")

#: The limits of the fields that may be longer than a message.
_LONGER = {"trace": TRACE_KIB, "description": TRACE_KIB, "descriptionHtml": TRACE_KIB}
#: The suffixes of attachments that readers open as text, and that may contain a guest's output.
_TEXTS = (".txt", ".json", ".xml", ".csv", ".tsv", ".yaml", ".uri")


class AllureFiles(AllureFileLogger):
    """Replaces Allure's own writer, and writes the same files.

    A lone surrogate or a full disk makes Allure's own writer end the run. AllureFiles escapes
    unprintable characters, and lets the run continue if a file can't be written. `error` contains
    the name of the first file that could not be written, and the reason.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)  # type: ignore[no-untyped-call]
        self.error: tuple[str, OSError] | None = None

    @override
    @allure_commons.hookimpl
    def report_result(self, result: TestResult) -> None:
        self._write(result)

    @override
    @allure_commons.hookimpl
    def report_container(self, container: TestResultContainer) -> None:
        self._write(container)

    @override
    @allure_commons.hookimpl
    def report_globals(self, globals_item: Globals) -> None:
        self._write(globals_item)

    @override
    @allure_commons.hookimpl
    def report_attached_data(self, body: str | bytes, file_name: str) -> None:
        is_text = isinstance(body, str) or file_name.endswith(_TEXTS)
        content = _text_of(body) if is_text else body
        self._attempt(file_name, lambda: self._attach(content, file_name))

    @override
    @allure_commons.hookimpl
    def report_attached_file(self, source: str, file_name: str) -> None:
        # A missing source file is the caller's error, so `stat` may raise it.
        size = Path(source).stat().st_size
        if size > ATTACHMENT_MIB.bytes:
            note = f"{ATTACHMENT_MIB.error(str(source))} The file has {size} bytes.\n"
            self.report_attached_data(note, file_name)
        elif file_name.endswith(_TEXTS):
            self.report_attached_data(Path(source).read_bytes(), file_name)
        else:
            copy = super().report_attached_file
            self._attempt(file_name, lambda: copy(source, file_name))  # type: ignore[no-untyped-call]

    def _write(self, item: TestResult | TestResultContainer | Globals) -> None:
        _clean(item)
        self._attempt(item.file_pattern.format(prefix="*"), lambda: self._report_item(item))  # type: ignore[no-untyped-call]

    def _attach(self, content: str | bytes, file_name: str) -> None:
        super().report_attached_data(content, file_name)  # type: ignore[no-untyped-call]

    def _attempt(self, name: str, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if self.error is None:
                self.error = (name, error)
            # Allure's writer gives this suffix to files that are only partly written.
            for part in self._report_dir.glob("*.tmp"):
                with contextlib.suppress(OSError):
                    part.unlink()


def _text_of(body: str | bytes) -> str:
    text = body if isinstance(body, str) else body.decode(errors="backslashreplace")
    return shortened(visible(text), ATTACHMENT_MIB.bytes)


def _clean(value: _T, limit: int = MESSAGE_BYTES) -> _T:
    """Escape and shorten each text of a result; objects are changed in place."""
    changed: object = value
    if isinstance(value, str):
        changed = visible(shortened(value, limit))
    elif isinstance(value, list):
        changed = [_clean(each, limit) for each in value]
    elif attr.has(kind := type(value)):
        for field in attr.fields(kind):
            most = _LONGER[field.name].bytes if field.name in _LONGER else MESSAGE_BYTES
            setattr(value, field.name, _clean(getattr(value, field.name), most))
    return cast("_T", changed)
