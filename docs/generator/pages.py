"""Returns the pages of the site that are not in `docs`: root pages and generated pages."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

from docs.generator import import_graph, overview, smi_fields
from docs.generator.repository_pages import dev_commands, module_page
from harness.provisioning.command import LocalRunner
from harness.reference import GENERATED
from harness.reference.option_pages import command_page

REPOSITORY = Path(__file__).parents[2]

#: For each page in the repository's root, its address in the site.
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
#: The folder of pictures for pages in the repository; `./dev docs` writes all but the film.
COMMITTED_PICTURES = "docs/pictures"

_RELEASED = "<!-- release notes start -->\n"
_TOWNCRIER_S = 60.0

#: A fence with a second word, which selects a test of the block; mkdocs accepts only one word.
_FENCE = re.compile(r"(?m)^(```\w+) \w+$")
_LINK = re.compile(r"(?<=\]\()(?!https?://|#)([^)\s#]+)")


def generated(repository: Path) -> dict[str, str]:
    """Return every page and picture that is not a file of `docs`, by its address in the site."""
    pictures = import_graph.pictures(import_graph.read_graph(), repository)
    return {
        **{address: (repository / name).read_text() for name, address in ROOT_PAGES.items()},
        "changelog.md": changelog(repository),
        **{f"{name}.md": make() for name, make in GENERATED.items()},
        "reference/commands.md": command_page(dev_commands(repository)),
        "reference/modules.md": module_page(repository, pictures),
        "reference/nvidia-smi-fields.md": smi_fields.field_page(),
        **{f"pictures/{package}.svg": svg for package, svg in pictures.items()},
    }


def committed_pictures(repository: Path) -> dict[str, str]:
    """Return the committed pictures by their path in the repository."""
    pictures = import_graph.pictures(import_graph.read_graph(), repository)
    return {
        f"{COMMITTED_PICTURES}/packages.svg": pictures[import_graph.ROOT],
        f"{COMMITTED_PICTURES}/overview.svg": overview.picture(),
    }


def changelog(repository: Path) -> str:
    """Return the changelog, with the fragments of the next release as towncrier renders them."""
    result = LocalRunner().run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--dir", str(repository)],
        timeout_s=_TOWNCRIER_S,
    )
    # towncrier prints the rendered fragments to stdout, and messages about its actions to stderr.
    rendered = result.check("Rendering the changelog fragments").stdout
    notes = re.sub(r"(?m)^## .*$", "## Not released yet", rendered, count=1)
    head, mark, released = (repository / "CHANGELOG.md").read_text().partition(_RELEASED)
    return f"{head}{mark}\n{notes}{released}"


def for_site(page: str, text: str) -> str:
    """Return a page's Markdown with links between files turned into links between pages.

    `page` is the page's address in the site.
    """
    sources = {address: name for name, address in ROOT_PAGES.items()}
    source = sources.get(page, f"docs/{page}")

    def rewrite(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        address = ROOT_PAGES.get(target, target.removeprefix("docs/"))
        return posixpath.relpath(address, posixpath.dirname(page) or ".")

    return _LINK.sub(rewrite, _FENCE.sub(r"\1", text))
