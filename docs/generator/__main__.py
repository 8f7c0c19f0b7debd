"""Writes the pictures and the recipes that lie in the repository: `python -m docs.generator`."""

from __future__ import annotations

from docs.generator.ci_recipes import recipes
from docs.generator.pages import REPOSITORY, committed_pictures


def main() -> None:
    """Write each file whose text differs from the text that the code makes."""
    for path, svg in {**committed_pictures(REPOSITORY), **recipes()}.items():
        file = REPOSITORY / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != svg:
            file.write_text(svg)


if __name__ == "__main__":
    main()
