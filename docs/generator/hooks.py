"""Hooks of mkdocs: they add the generated pages, and rewrite links for the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from docs.generator import pages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_INLINE_CODE = re.compile(r"(?<!<pre>)(?<!<span></span>)<code>.*?</code>", re.DOTALL)
_OPTION = re.compile(r"(?<![\w-])--?\w+")


def on_files(files: Files, /, *, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for address, text in pages.generated(Path(config.config_file_path).parent).items():
        files.append(File.generated(config, address, content=text))
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between files of the repository as links between pages of the site."""
    del config, files
    return pages.for_site(page.file.src_uri, markdown)


def on_page_content(html: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark options in inline code, so that a browser breaks no line after their hyphens."""
    del page, config, files
    return _INLINE_CODE.sub(
        lambda found: _OPTION.sub(r'<span class="option">\g<0></span>', found[0]), html
    )
