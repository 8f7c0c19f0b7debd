"""The documentation site builds without a warning, and its generated pages agree with the code."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from docs.generator import import_graph, pages
from docs.generator.drawing import layered
from harness import expect
from harness.limits import all_limits
from harness.provisioning.command import LocalRunner
from harness.provisioning.exit_codes import ExitCode
from harness.reference.markdown import prose, table
from harness.reference.option_pages import pytest_options
from harness.reference.shapes import member_docstrings
from suites.docs.pages import REPOSITORY, parse_page

if TYPE_CHECKING:
    from pathlib import Path

    from harness.provisioning.command import CommandResult

#: A build takes 12 s on a quiet host with two processors.
_BUILD_S = 600.0
#: URLs that a browser would fetch from another host: scripts, styles, pictures and fonts.
_FETCHED = re.compile(r"<(?:script|img|link)[^>]+(?:src|href)=\"?(https?://[^\s\">]+)")


def build(folder: Path, site: Path) -> CommandResult:
    return LocalRunner().run(
        [
            *("env", "-C", str(folder), "NO_MKDOCS_2_WARNING=1"),
            *(sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)),
        ],
        timeout_s=_BUILD_S,
    )


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    """Return the generated files of the site, which are not in `docs`."""
    return pages.generated(REPOSITORY)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `./dev docs` does."""
    folder = tmp_path_factory.mktemp("site")
    build(REPOSITORY, folder).check("Building the documentation site")
    return folder


def test_site_has_every_page_and_loads_nothing_from_other_hosts(site: Path) -> None:
    names = {file.relative_to(site).as_posix() for file in site.glob("**/*.html")}

    assert {"index.html", "architecture.html", "reference/pytest.html"} <= names
    assert (site / "search/search_index.json").exists()
    for name in sorted(names):
        text = (site / name).read_text()
        fetched = [url for url in _FETCHED.findall(text) if 'rel="canonical' not in text]
        assert not fetched, f"'{name}' fetches {fetched}."


def test_command_line_option_in_text_has_markup_that_prevents_line_breaks(site: Path) -> None:
    text = (site / "gpus.html").read_text()

    assert '<code><span class="option">--gpu</span>-emulation=gsp</code>' in text
    # Options in a code block are not marked, since the block scrolls and readers copy from it.
    assert 'class="option"' not in "".join(re.findall("<pre>.*?</pre>", text, re.DOTALL))


def test_link_to_a_missing_page_or_heading_fails_the_build(tmp_path: Path) -> None:
    configuration = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())
    for key in ("hooks", "nav", "theme", "extra_css"):
        del configuration[key]
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(configuration))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Here\n\n[a](gone.md) [b](#gone)\n")

    result = build(tmp_path, tmp_path / "site")

    assert result.exit_code != 0
    assert "a link 'gone.md'" in result.stderr
    assert "a link '#gone'" in result.stderr


def test_pictures_in_the_repository_match_the_current_code() -> None:
    for path, svg in pages.committed_pictures(REPOSITORY).items():
        assert (REPOSITORY / path).read_text() == svg, f"Run './dev docs' to draw '{path}' again."


def test_no_row_of_a_reference_page_has_an_empty_last_column(generated: dict[str, str]) -> None:
    for name, text in generated.items():
        if name.startswith("reference/"):
            for found in parse_page(name, text).tables:
                empty = [row[0] for row in found.rows if not row[-1]]
                assert not empty, f"{name}, '{found.header[0]}': {empty} have no meaning."


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("reference/expectations.md", list(expect.__all__)),
        ("reference/provisioning.md", [code.name for code in ExitCode]),
        ("reference/pytest.md", [option.name for option in pytest_options()[0]]),
        ("reference/commands.md", ["harness image build", "./dev test --fast", "--unused-days"]),
        ("reference/fixtures.md", ["boot_node", "spare_slots"]),
        ("reference/images.md", ["ubuntu-24.04", "archives[].suites"]),
        ("reference/gpus.md", ["h100-sxm5-80gb", "bars_mib.vfio_user_64bit"]),
        ("reference/modules.md", ["kernel_modules", "harness.gpu"]),
        ("reference/limits.md", [limit.variable for limit in all_limits()]),
        ("changelog.md", ["## Not released yet", "### Bug fixes"]),
    ],
)
def test_generated_page_lists_the_names_from_the_code(
    generated: dict[str, str], page: str, names: list[str]
) -> None:
    missing = [name for name in names if name not in generated[page]]

    assert not missing, f"'{page}' lacks {missing}."


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index.md", "[a](docs/images.md#keys)", "[a](images.md#keys)"),
        ("index.md", "[a](CONTRIBUTING.md)", "[a](contributing.md)"),
        ("images.md", "[a](../README.md#first)", "[a](index.md#first)"),
        ("images.md", "[a](reference/images.md)", "[a](reference/images.md)"),
        ("images.md", "[a](https://example.org/README.md)", "[a](https://example.org/README.md)"),
        ("provisioning.md", "```json outcome\n{}\n```", "```json\n{}\n```"),
    ],
)
def test_links_between_files_become_links_between_pages(
    page: str, text: str, expected: str
) -> None:
    assert pages.for_site(page, text) == expected


def test_import_graph_omits_transitive_imports() -> None:
    edges = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}

    assert import_graph.reduced(edges) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_import_graph_has_a_box_for_each_module_and_an_arrow_for_each_import() -> None:
    edges = {"a": frozenset({"b", "d"}), "b": frozenset({"c"}), "c": frozenset({"d"})}
    edges["d"] = frozenset()

    svg = layered(edges, title="t")

    assert svg.count('<rect class="box"') == 4
    assert svg.count('marker-end="url(#tip)"') == 4
    assert layered(edges, title="t") == svg


def test_vertical_bar_in_a_cell_does_not_end_the_cell() -> None:
    assert table(("A",), [("x | y",)]).splitlines()[-1] == "| x \\| y |"


def test_names_in_a_docstring_become_inline_code_and_indented_code_is_unchanged() -> None:
    text = "Take `a_b` and c_d.\n\n    e_f(--g)\n\nEnd."

    assert prose(text) == "Take `a_b` and `c_d`.\n\n    e_f(--g)\n\nEnd."


class Example:
    """A class whose fields have docstrings."""

    first: int = 1
    """The first."""
    second: int = 2


def test_docstring_below_a_member_is_the_description_of_the_member() -> None:
    assert member_docstrings(Example) == {"first": "The first."}
