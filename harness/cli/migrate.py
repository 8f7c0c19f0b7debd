"""`harness migrate SPEC`: prints a shell spec as a pytest module."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.shell.process import ShellCommandRunner
from harness.shell.sandbox import choose_sandbox
from harness.shell.spec.migrate import migrate
from harness.shell.spec.migrated_project import MigratedProject
from harness.shell.spec.parameter_rows import ShellRowEvaluator
from harness.shell.spec.project import Project, project_variables

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Commands


def add_parser(commands: Commands) -> None:
    """Add `migrate` to the commands of `harness`."""
    parser = commands.add_parser("migrate")
    parser.add_argument("spec", type=Path, metavar="SPEC", help="the spec file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the pytest module for the shell spec."""
    spec: Path = arguments.spec
    try:
        text = spec.read_text(errors="surrogateescape")
    except OSError as error:
        raise BadInputError(
            f"The spec can't be read ({error.strerror}); give the path of a *_spec.sh file.",
            source=str(spec),
        ) from error
    path = spec.absolute()
    project = Project.of(path, Path.cwd())
    evaluate = ShellRowEvaluator(
        ShellCommandRunner(),
        lambda: choose_sandbox("auto"),
        source=str(spec),
        cwd=Path.cwd(),
        env=project_variables(project, path),
    )
    migrated = MigratedProject.of(project, path, Path.cwd())
    # Bytes of the spec that are not UTF-8 are written unchanged, with any locale.
    module = migrate(str(spec), text, evaluate, migrated).encode(errors="surrogateescape")
    sys.stdout.flush()
    sys.stdout.buffer.write(module)
    return 0
