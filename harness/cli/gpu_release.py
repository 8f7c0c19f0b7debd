"""`harness gpu release`: makes the data that emulated GPUs need for a release of NVIDIA's driver."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.options import add_gpu_options, settings_of
from harness.errors import BadInputError, naming
from harness.gpu.gsp.layouts import (
    FOLDER,
    known_releases,
    nearest_release,
    read_layouts,
    read_release_file,
    render_release,
)
from harness.gpu.gsp.release_source import changes, make_release
from harness.lease import temporary_folder
from harness.provisioning.command import LocalRunner
from harness.visible_text import visible_line

if TYPE_CHECKING:
    import argparse

    from harness.cli.options import Actions

_UNPACK_S = 300.0


def add_parser(commands: Actions) -> None:
    parser = commands.add_parser(
        "release",
        help="generate the data that an emulated GPU needs for a release of NVIDIA's driver, from the "
        "source of its open kernel modules",
    )
    add_gpu_options(parser)
    parser.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help="the source of NVIDIA's open kernel modules of that release: a folder, or an "
        "archive such as the one in Debian's package 'nvidia-open-gpu-kernel-modules'",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("gpu-models"),
        metavar="DIR",
        help="the folder of GPU models into which the data is written (default: %(default)s); pass this "
        "folder as --gpu-models to the commands that need the data",
    )
    parser.set_defaults(run=_release)


def _release(arguments: argparse.Namespace) -> int:
    folders = settings_of(arguments).gpu_models
    runner = LocalRunner()
    with temporary_folder("harness-gpu-release") as work:
        source = arguments.source.resolve()
        if source.is_file():
            unpacked = work / "source"
            unpacked.mkdir()
            argv = ["tar", f"--file={source}", "--extract", f"--directory={unpacked}"]
            runner.run([*argv, "--strip-components=1"], timeout_s=_UNPACK_S).check(
                f"Unpacking '{source}'"
            )
            source = unpacked
        elif not source.is_dir():
            raise BadInputError("There is no such folder or archive.", source=str(source))
        made = make_release(source, work, runner)
    known = known_releases(*folders)
    file = arguments.output / FOLDER / f"{made.release}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with naming(file):
        file.write_text(render_release(made))
    new = read_release_file(file)
    print(file)
    nearest = nearest_release(made.release, known)
    if nearest is None:
        return 0
    lines = list(changes(read_layouts(nearest, *folders), new))
    print(f"[gpu] {len(lines)} changes since release {nearest}", file=sys.stderr)
    for line in lines:
        print(visible_line(line))
    return 0
