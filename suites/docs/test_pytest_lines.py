"""pytest accepts the commands and tests that the pages show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from suites.docs.commands import Programs, command_lines
from suites.docs.examples import Request, file_name
from suites.docs.pages import REPOSITORY, Block, Place, StaleDocumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from suites.docs.examples import Answer, Sandbox

PLACE = Place(page="page.md", line=1)
#: Tests that have the words and markers by which the pages select tests.
FEW = (
    "suites/e2e/test_boot.py",
    "suites/e2e/test_own_kernels.py",
    "suites/e2e/real_driver/test_opened_free.py",
)
ALL = Request.to_plan(PLACE, ["suites/e2e"])
FAILING = Block(
    place=PLACE,
    language="python",
    kind="",
    text="# shown/test_failing.py\ndef test_it() -> None:\n    assert not 1\n",
)
LOST = Block(
    place=PLACE,
    language="python",
    kind="",
    text="# shown/test_lost.py\ndef test_it(boot_nodes: object) -> None: ...\n",
)
WRONG: Mapping[str, Request] = {
    "file or directory not found": Request.to_plan(PLACE, ["suites/e2e/test_missing.py"]),
    "4 deselected": Request.to_plan(PLACE, ["suites/e2e/test_bake.py", "-k", "no_such_test"]),
    "invalid choice: 'sometimes'": Request.to_plan(PLACE, ["--evidence=sometimes"]),
    "assert not 1": Request.to_run(FAILING),
    "fixture 'boot_nodes' not found": Request.to_plan(PLACE, [str(file_name(LOST))]),
}


def narrowed(arguments: Sequence[str]) -> list[str]:
    """Replace all e2e tests by a few files, which are planned faster."""
    selects = any(argument.startswith(("-k", "-m")) for argument in arguments)
    few = FEW if selects else FEW[:1]
    return [
        each
        for argument in arguments
        for each in (few if argument == "suites/e2e" else [argument])
    ]


@pytest.fixture(scope="module")
def shown(blocks: Callable[[str], list[Block]]) -> list[Request]:
    """Return the command lines and tests on the pages: e2e tests are only planned, other tests run."""
    programs = Programs.of(REPOSITORY)
    # suites/host/wheel runs the command lines for a new project in such a project.
    here = [block for block in blocks("sh") if block.kind not in ("project", "scripts")]
    lines = [line for block in here for line in command_lines(block)]
    given = [(line.place, programs.check(line)) for line in lines]
    shown = [*blocks("python"), *blocks("bash")]
    tests = {str(file_name(block)): block for block in shown if file_name(block)}
    return [
        *(
            Request.to_plan(place, narrowed(arguments))
            for place, arguments in given
            if arguments is not None
        ),
        *(
            Request.to_run(block)
            if name.startswith("suites/unit/") or name.endswith("_spec.sh")
            else Request.to_plan(block.place, [name])
            for name, block in tests.items()
            # Other shown files are helpers that the shown tests import.
            if name.endswith("_spec.sh") or Path(name).name.startswith("test_")
        ),
    ]


@pytest.fixture(scope="module")
def answers(sandbox: Sandbox, shown: list[Request]) -> dict[Request, Answer]:
    """Make all requests in one process, since pytest takes longer to start than to check a request."""
    for block in (FAILING, LOST):
        sandbox.put(block)
    return sandbox.pytest([*shown, ALL, *WRONG.values()])


def test_pytest_accepts_the_command_lines_on_pages(
    shown: list[Request], answers: dict[Request, Answer]
) -> None:
    assert len(shown) > 2
    for request in shown:
        request.check(answers[request])


def test_all_fixtures_of_e2e_tests_are_found(answers: dict[Request, Answer]) -> None:
    ALL.check(answers[ALL])


@pytest.mark.parametrize("message", WRONG)
def test_command_line_that_pytest_refuses_is_reported_with_its_place(
    answers: dict[Request, Answer], message: str
) -> None:
    request = WRONG[message]

    with pytest.raises(StaleDocumentError, match=f"(?s)page.md:1: pytest ends with .*{message}"):
        request.check(answers[request])
