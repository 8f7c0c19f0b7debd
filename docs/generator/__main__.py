"""Writes the committed pictures and CI recipes: `python -m docs.generator`."""

from __future__ import annotations

from docs.generator.ci_recipes import recipes
from docs.generator.pages import REPOSITORY, committed_pictures


def main() -> None:
    """Write each committed picture or recipe whose file differs from the generated text."""
    for path, svg in {**committed_pictures(REPOSITORY), **recipes()}.items():
        file = REPOSITORY / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != svg:
            file.write_text(svg)


if __name__ == "__main__":
    main()
