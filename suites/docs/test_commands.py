"""The programs accept the command lines that pages show."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from suites.docs.commands import Programs, command_lines
from suites.docs.pages import REPOSITORY, Block, Place, StaleDocumentError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def programs() -> Programs:
    return Programs.of(REPOSITORY)


def shell(text: str) -> Block:
    return Block(place=Place(page="page.md", line=1), language="sh", kind="", text=text)


def test_documented_command_lines_are_valid(
    programs: Programs, blocks: Callable[[str], list[Block]]
) -> None:
    for block in blocks("sh"):
        for line in command_lines(block):
            programs.check(line)


def test_dev_help_lists_every_command(programs: Programs) -> None:
    described = re.findall(r"^#   \./dev ([a-z]+)", (REPOSITORY / "dev").read_text(), re.MULTILINE)

    assert set(programs.dev) == {*described, "help"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "./dev demonstrate",
            "'./dev demonstrate' is not known; known are demo, docs, endure, film, help, lock, mutants, nightly, ",
        ),
        ("./dev test --slow", "'./dev test' does not know '--slow'"),
        ("./dev demo --fast", "unrecognized arguments: --fast"),
        ("./dev mutants --all", "unrecognized arguments: --all"),
        ("./dev run harness doctors", "invalid choice: 'doctors'"),
        ("harness image build --imag", "--imag"),
        ("harness doctor --accelerator=xen", "invalid choice: 'xen'"),
        ("python3 -I provisioning.pyz boots", "invalid choice: 'boots'"),
        ("python3 script.py", "Nothing here can check the command 'python3'"),
        ("tox -e passthru", "tox has no such environment"),
        ("apt-get install qemu-system-arm", "does not install 'qemu-system-arm'"),
        ("curl example.org", "Nothing here can check the command 'curl'"),
    ],
)
def test_invalid_command_is_reported(programs: Programs, line: str, message: str) -> None:
    (command,) = command_lines(shell(f"{line}\n"))

    with pytest.raises(StaleDocumentError, match=rf"page.md:2: .*{re.escape(message)}"):
        programs.check(command)


def test_command_line_parser_removes_comments_and_variables_and_joins_continued_lines() -> None:
    lines = list(command_lines(shell("# first\nCI=true pytest suites/e2e \\\n  -n 2  # two\n")))

    assert [line.words for line in lines] == [("pytest", "suites/e2e", "-n", "2")]
