"""An expected absence is met only if the log or the events are not empty, so a lost log is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import BadInputError, ExpectationError, HarnessError
from harness.evidence import CLOUD_INIT_OUTPUT_PATH
from harness.provisioner.gpu_node import EVENTS_FOLDER
from suites.unit.evidence.folders import a_serving_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.evidence import Evidence


def test_absence_of_a_line_is_unknown_if_the_log_is_empty(tmp_path: Path) -> None:
    evidence = a_serving_node(tmp_path).file(CLOUD_INIT_OUTPUT_PATH, "").evidence

    with pytest.raises(HarnessError, match=r"with 'x': the log is empty"):
        expect.no_log_line(evidence, "x")


def test_absence_of_an_event_is_unknown_if_there_are_no_events(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)
    for path in (tmp_path / f"files{EVENTS_FOLDER}").iterdir():
        path.unlink()

    with pytest.raises(HarnessError, match="there is no event at all"):
        expect.no_event_recorded(folder.evidence, "x")


def test_error_for_an_unwanted_log_line_quotes_the_line(tmp_path: Path) -> None:
    evidence = a_serving_node(tmp_path).file(CLOUD_INIT_OUTPUT_PATH, "a\nbad luck\n").evidence

    with pytest.raises(ExpectationError, match="but there is: bad luck"):
        expect.no_log_line(evidence, "bad")


@pytest.mark.parametrize("expectation", [expect.log_line, expect.no_log_line])
def test_empty_or_multi_line_text_is_refused(
    tmp_path: Path, expectation: Callable[[Evidence, str], None]
) -> None:
    evidence = a_serving_node(tmp_path).file(CLOUD_INIT_OUTPUT_PATH, "one\ntwo\n").evidence

    for text in ("", "\n", "one\ntwo", "one\n"):
        with pytest.raises(BadInputError, match="A part of one line was expected"):
            expectation(evidence, text)


@pytest.mark.parametrize("expectation", [expect.events_recorded, expect.no_event_recorded])
def test_empty_list_of_event_names_is_refused(
    tmp_path: Path, expectation: Callable[..., None]
) -> None:
    """Each node would meet an expectation without event names."""
    evidence = a_serving_node(tmp_path).evidence

    for names in ((), ("",), ("x", "")):
        with pytest.raises(BadInputError, match="The names of events were expected"):
            expectation(evidence, *names)
