"""Fixtures: the pages, and a copy of the repository with the files that the pages show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.docs.examples import Sandbox, file_name
from suites.docs.pages import REPOSITORY, Page, read_pages

if TYPE_CHECKING:
    from collections.abc import Callable

    from suites.docs.pages import Block

_PLUGINS = ("-p", "harness.plugin", "-p", "harness.plugin.specs.hooks")


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
def sandbox(
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
    blocks: Callable[[str], list[Block]],
) -> Sandbox:
    """Return a copy of the repository, with all files that the pages show."""
    # If the project is not installed, the plugin was named on the command line of pytest.
    by_module = pytestconfig.pluginmanager.has_plugin("harness.plugin")
    made = Sandbox(
        folder=tmp_path_factory.mktemp("repository"),
        repository=REPOSITORY,
        plugin_arguments=_PLUGINS if by_module else (),
    )
    made.prepare()
    for block in [*blocks("python"), *blocks("yaml"), *blocks("bash")]:
        if file_name(block) is not None:
            made.put(block)
    return made
