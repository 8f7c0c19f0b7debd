"""The pages, and a copy of the repository with the files that they tell a reader to write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.unit.docs.examples import Sandbox, file_name
from suites.unit.docs.pages import REPOSITORY, Page, read_pages

if TYPE_CHECKING:
    from collections.abc import Callable

    from suites.unit.docs.pages import Block


@pytest.fixture(scope="session")
def pages() -> list[Page]:
    return read_pages()


@pytest.fixture(scope="session")
def blocks(pages: list[Page]) -> Callable[[str], list[Block]]:
    """Return a function that returns all blocks of a language."""

    def of(language: str) -> list[Block]:
        return [block for page in pages for block in page.blocks if block.language == language]

    return of


@pytest.fixture(scope="session")
def make_sandbox(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Callable[[], Sandbox]:
    """Return a function that makes a copy of the repository."""
    # Where the project is not installed, pytest was told of the plugin on its command line.
    by_module = pytestconfig.pluginmanager.has_plugin("harness.plugin")

    def make() -> Sandbox:
        sandbox = Sandbox(
            folder=tmp_path_factory.mktemp("repository"),
            repository=REPOSITORY,
            plugin_arguments=("-p", "harness.plugin") if by_module else (),
        )
        sandbox.prepare()
        return sandbox

    return make


@pytest.fixture(scope="session")
def sandbox(make_sandbox: Callable[[], Sandbox], blocks: Callable[[str], list[Block]]) -> Sandbox:
    """Return a copy with all files that the pages show."""
    made = make_sandbox()
    for block in [*blocks("python"), *blocks("yaml")]:
        if file_name(block) is not None:
            made.put(block)
    return made
