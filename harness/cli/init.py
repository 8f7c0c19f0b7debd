"""`harness init [DIR]`: writes a project with a script, its tests, an image and a CI workflow."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.existing_scripts import (
    main_script,
    named_script,
    packages_of,
    render_declaration,
    render_machine_test,
    render_unit_test,
    scripts_in,
)
from harness.errors import BadInputError, listed, naming
from harness.settings import APPLICATION

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from harness.cli.options import Commands

#: The files of a new project; `@VERSION@` stands for the harness's version.
TEMPLATE = Path(__file__).with_name("new_project")

#: The files of the example: a script and its tests.
_EXAMPLES = frozenset(
    {
        *("scripts/prepare_node.sh", "tests/e2e/test_first_node.py"),
        *("tests/unit/test_prepare_node.py", "tests/README.md"),
    }
)

_RECIPE = "images/node.yaml"
#: The image that the new project's recipe extends.
_SHIPPED_IMAGE = "debian-12"

#: The files that can configure pytest, each with the section that pytest reads. pytest reads only
#: the first file that has this section.
_PYTEST_SECTIONS = {
    "pytest.toml": re.compile(""),
    ".pytest.toml": re.compile(""),
    ".pytest.ini": re.compile(""),
    "pyproject.toml": re.compile(r"^[ \t]*\[\s*tool\.pytest\b", re.MULTILINE),
    "tox.ini": re.compile(r"^\[pytest\]", re.MULTILINE),
    "setup.cfg": re.compile(r"^\[tool:pytest\]", re.MULTILINE),
}


def add_parser(commands: Commands) -> None:
    """Add `init` to the commands of `harness`."""
    parser = commands.add_parser("init")
    parser.add_argument(
        "folder",
        nargs="?",
        default=Path(),
        type=Path,
        metavar="DIR",
        help="the project's folder, created if it does not exist (default: the current one)",
    )
    parser.add_argument(
        "--provisioner",
        type=Path,
        metavar="SCRIPTS",
        help="a folder of shell scripts in the project: declare them as the project's provisioner, "
        "and write a machine test and a unit test for these scripts instead of an example",
    )
    parser.add_argument(
        "--run",
        dest="script",
        metavar="SCRIPT",
        help="with --provisioner: the script that machines run, as a path relative to the folder SCRIPTS; "
        "needed if several scripts could be the main script",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the project, and print the written files and the next steps."""
    folder: Path = arguments.folder
    files = project_files()
    if arguments.provisioner is not None:
        files = around_scripts(files, folder, arguments.provisioner, arguments.script)
    elif arguments.script is not None:
        raise BadInputError(
            "This option needs --provisioner, since --run selects a script of the folder that --provisioner names.",
            source="--run",
        )
    write_project(folder, files)
    for name in files:
        print(folder / name)
    enter = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    print(f"\nNext: {enter}harness doctor && pytest")
    return 0


def project_files() -> dict[str, tuple[bytes, bool]]:
    """Return the files of a new project by path; a file is its content and whether it is executable."""
    version = importlib.metadata.version(APPLICATION).encode()
    return {
        path.relative_to(TEMPLATE).as_posix(): (
            path.read_bytes().replace(b"@VERSION@", version),
            path.suffix == ".sh",
        )
        for path in sorted(TEMPLATE.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }


def around_scripts(
    files: Mapping[str, tuple[bytes, bool]], project: Path, scripts: Path, run_script: str | None
) -> dict[str, tuple[bytes, bool]]:
    """Return the files of a project whose provisioner is an existing folder of scripts.

    Raises BadInputError if the folder is not in the project, or has no script that can run.
    """
    try:
        source = scripts.resolve().relative_to(project.resolve()).as_posix()
    except ValueError:
        raise BadInputError(
            f"This folder is not in the project's folder '{project.resolve()}'; run `harness init` "
            "in a folder that contains both.",
            source=f"--provisioner {scripts}",
        ) from None
    found, specs = scripts_in(scripts)
    main = (
        main_script(found, scripts)
        if run_script is None
        else named_script(found, scripts, run_script)
    )
    written = {name: each for name, each in files.items() if name not in _EXAMPLES}
    folders = dict.fromkeys(spec.resolve().parent for spec in specs)
    inside = [each for each in folders if each.is_relative_to(project.resolve())]
    tested = ["tests", *(each.relative_to(project.resolve()).as_posix() for each in inside)]
    for name in (source, *(each.path.relative_to(scripts).as_posix() for each in found), *tested):
        if not name.isprintable():
            raise BadInputError(
                f"'{name}' has a character that is not printable, or bytes that are not UTF-8; rename it.",
                source=f"--provisioner {scripts}",
            )
    ini = (
        files["pytest.ini"][0]
        .decode()
        .replace("testpaths = tests", f"testpaths = {shlex.join(tested)}")
    )
    texts = {
        "provisioner.yaml": render_declaration(main, scripts, source),
        "tests/e2e/test_node.py": render_machine_test(main),
        "tests/unit/test_scripts.py": render_unit_test(found, source, scripts),
    }
    if packages := packages_of(found):
        recipe = written[_RECIPE][0].decode()
        texts[_RECIPE] = recipe.replace("packages: [jq]", f"packages: [{', '.join(packages)}]")
    else:
        del written[_RECIPE]
        ini = _with_shipped_image(ini)
    texts["pytest.ini"] = ini
    return {**written, **{name: (text.encode(), False) for name, text in texts.items()}}


def _with_shipped_image(ini: str) -> str:
    """Return the pytest configuration `ini`, changed to use a shipped image, not the project's image."""
    lines = [line for line in ini.splitlines(keepends=True) if not line.startswith("images_dir")]
    return (
        "".join(lines)
        .replace(
            "# --image=node is images/node.yaml; `harness image ls` lists the harness's own images.",
            "# `harness image ls` lists the images. To add packages to an image: `harness docs images`, 'Extending a recipe'.",
        )
        .replace("--image=node", f"--image={_SHIPPED_IMAGE}")
    )


def write_project(folder: Path, files: Mapping[str, tuple[bytes, bool]]) -> None:
    """Write all files below `folder`, or no file.

    Raises BadInputError if one of these files exists, if another file configures pytest already, or
    if a file is where a folder has to be made; the error names each such file. Raises OSError if a
    file can't be written.
    """
    present = [name for name in files if (folder / name).exists() or (folder / name).is_symlink()]
    if present:
        raise BadInputError(
            f"{listed(present)} exist here already, and no file is overwritten, so nothing was "
            "written; choose another folder, for example by `harness init gpu-tests`.",
            source=str(folder),
        )
    for parent in (parent for name in files for parent in (folder / name).parents):
        if parent.exists() and not parent.is_dir():
            raise BadInputError(
                "This is a file, but the project needs a folder of this name, so nothing was written; "
                "give another folder for the project, for example by `harness init gpu-tests`.",
                source=str(parent),
            )
    for name, section in _PYTEST_SECTIONS.items():
        path = folder / name
        if path.is_file() and section.search(path.read_text(errors="replace")):
            raise BadInputError(
                "This file configures pytest, but pytest would ignore it beside the project's "
                "'pytest.ini', so nothing was written; choose another folder, for example by "
                "`harness init gpu-tests`.",
                source=str(path),
            )
    with _undone_on_error() as (made_folders, made_files):
        for name, (content, is_program) in files.items():
            path = folder / name
            for parent in reversed([one for one in path.parents if not one.exists()]):
                parent.mkdir()
                made_folders.append(parent)
            with naming(path), path.open("xb") as file:
                made_files.append(path)
                file.write(content)
            if is_program:
                mode = path.stat().st_mode
                path.chmod(mode | (mode & 0o444) >> 2)


@contextlib.contextmanager
def _undone_on_error() -> Iterator[tuple[list[Path], list[Path]]]:
    """Yield a list for folders and a list for files; if the `with` block fails, remove all listed paths."""
    folders: list[Path] = []
    files: list[Path] = []
    try:
        yield folders, files
    except BaseException:
        for path in files:
            path.unlink(missing_ok=True)
        for path in reversed(folders):
            with contextlib.suppress(OSError):
                path.rmdir()
        raise
