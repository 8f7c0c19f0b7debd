"""A spec project: its root, what its `.shellspec` files ask for, and what its shells see."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shlex
import stat
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInputError, RequirementError
from harness.lease import leased_folder, sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

OPTION_FILES = (".shellspec", ".shellspec-local")
_SHELLS = {"sh", "bash"}
_VERSION = "0.28.1"
_WITH_VALUE = {
    "--shell", "-s", "--require", "-r", "--helperdir", "--load-path", "-I", "--default-path",
    "--pattern", "-P", "--env", "-e", "--env-from", "--path", "--execdir", "--tag", "-T",
    "--example", "-E", "--warning-as-failure",
}  # fmt: skip
_IGNORED_WITH_VALUE = {
    "--format", "-f", "--output", "-o", "--reportdir", "--jobs", "-j", "--random", "--color-mode",
    "--kcov-path", "--kcov-options", "--covdir", "--tmpdir", "--failure-exit-code",
    "--error-exit-code", "--profile-limit", "--log-file", "--docker", "--directory", "-c",
    "--chdir", "-C", "--logfile", "--boost", "--skip-message-limit",
}  # fmt: skip
_IGNORED = {
    "--color", "--no-color", "--kcov", "--no-kcov", "--quiet", "-q", "--profile", "-p",
    "--no-profile", "--fail-fast", "--no-fail-fast", "--xtrace", "-x", "--no-xtrace", "--sandbox",
    "--no-sandbox", "--skip-message", "--pending-message", "--quick", "--no-quick", "--repair",
    "--next-failure", "--banner", "--no-banner", "--deref", "--no-deref", "--keep-tmpdir",
    "--no-keep-tmpdir", "--fail-no-examples", "--no-fail-no-examples", "--fail-low-coverage",
    "--no-fail-low-coverage", "-w", "--env-from-file", "--no-env-from",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SpecOptions:
    """What `.shellspec` sets that changes how specs run; the rest is pytest's business."""

    shell: str = "bash"
    requires: tuple[str, ...] = ()
    helper_dir: str = "spec"
    load_path: tuple[str, ...] = ()
    pattern: str = "*_spec.sh"
    env: tuple[tuple[str, str], ...] = ()
    env_from: str | None = None
    path: str | None = None
    exec_dir: str = "@project"
    tags: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    focus: bool = False
    warning_as_failure: bool = True


_TEXT_OPTIONS: dict[str, Callable[[SpecOptions, str], SpecOptions]] = {
    "--helperdir": lambda options, value: replace(options, helper_dir=value),
    "--pattern": lambda options, value: replace(options, pattern=value),
    "-P": lambda options, value: replace(options, pattern=value),
    "--env-from": lambda options, value: replace(options, env_from=value),
    "--path": lambda options, value: replace(options, path=value),
    "--execdir": lambda options, value: replace(options, exec_dir=value),
    "--require": lambda options, value: replace(options, requires=(*options.requires, value)),
    "-r": lambda options, value: replace(options, requires=(*options.requires, value)),
    "--load-path": lambda options, value: replace(options, load_path=(*options.load_path, value)),
    "-I": lambda options, value: replace(options, load_path=(*options.load_path, value)),
    "--tag": lambda options, value: replace(options, tags=(*options.tags, *value.split(","))),
    "-T": lambda options, value: replace(options, tags=(*options.tags, *value.split(","))),
    "--example": lambda options, value: replace(options, examples=(*options.examples, value)),
    "-E": lambda options, value: replace(options, examples=(*options.examples, value)),
}


def find_root(start: Path, fallback: Path) -> Path:
    """Return the nearest directory at or above `start` that holds a `.shellspec`."""
    for directory in (start, *start.parents):
        if (directory / ".shellspec").is_file():
            return directory
    return fallback


def read_options(root: Path) -> SpecOptions:
    """Read the option files of the project at `root`.

    Raises BadInputError for an option that does not exist or that this runner cannot honour.
    """
    options = SpecOptions()
    for name in OPTION_FILES:
        path = root / name
        if not path.is_file():
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            try:
                words = shlex.split(line, comments=True)
            except ValueError as error:
                raise BadInputError(f"{error}.", source=str(path), line=number) from error
            options = _apply(options, words, str(path), number)
    return options


def _apply(options: SpecOptions, words: list[str], source: str, line: int) -> SpecOptions:
    rest = iter(words)
    for word in rest:
        option, separator, value = _split_option(word)
        if option in _IGNORED or option.removeprefix("--no-") in {"warning-as-failure", "focus"}:
            options = _switch(options, option)
            continue
        if option in {"--focus", "-F"}:
            options = replace(options, focus=True)
            continue
        if option == "--warning-as-failure" and not separator:
            continue
        if option not in _WITH_VALUE | _IGNORED_WITH_VALUE:
            raise BadInputError(f"There is no option '{option}'.", source=source, line=line)
        if not separator:
            found = next(rest, None)
            if found is None:
                raise BadInputError(f"'{option}' needs a value.", source=source, line=line)
            value = found
        if option in _WITH_VALUE:
            options = _set(options, option, value, source, line)
    return options


def _split_option(word: str) -> tuple[str, str, str]:
    if not word.startswith("--") and len(word) > 2:
        return word[:2], "=", word[2:]
    return word.partition("=")


def _switch(options: SpecOptions, option: str) -> SpecOptions:
    if option == "--no-warning-as-failure":
        return replace(options, warning_as_failure=False)
    return replace(options, focus=False) if option == "--no-focus" else options


def _set(options: SpecOptions, option: str, value: str, source: str, line: int) -> SpecOptions:
    if option in {"--shell", "-s"}:
        if Path(value).name not in _SHELLS:
            raise BadInputError(
                f"Specs run in bash; '--shell {value}' is not supported.",
                source=source,
                line=line,
            )
        return replace(options, shell="bash" if value in _SHELLS else value)
    if option in {"--env", "-e"}:
        name, _, text = value.partition("=")
        return replace(options, env=(*options.env, (name, text)))
    change = _TEXT_OPTIONS.get(option)
    return options if change is None else change(options, value)


def matches_pattern(options: SpecOptions, path: Path) -> bool:
    return fnmatch.fnmatch(path.name, options.pattern)


@dataclass(frozen=True, kw_only=True)
class Project:
    """A directory with specs and the options that hold there."""

    root: Path
    options: SpecOptions = field(default_factory=SpecOptions)

    @classmethod
    def of(cls, spec: Path, fallback: Path) -> Project:
        root = find_root(spec.parent, fallback)
        return cls(root=root, options=read_options(root))

    def relative(self, path: Path) -> str:
        """Return `path` as messages and specs name it."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def exec_dir(self, spec: Path) -> Path:
        """Return the directory in which a spec runs.

        Raises BadInputError where the option names no such place.
        """
        place, _, below = self.options.exec_dir.partition("/")
        if place == "@project":
            return self.root / below
        if place == "@specfile":
            return spec.parent / below
        if place == "@basedir":
            for directory in (spec.parent, *spec.parent.parents):
                if any((directory / n).exists() for n in (".shellspec", ".shellspec-basedir")):
                    return directory / below
            return self.root / below
        raise BadInputError(
            f"'--execdir {self.options.exec_dir}' names none of @project, @basedir, @specfile.",
            source=str(self.root / ".shellspec"),
        )


class ScratchFolder:
    """The run's temporary directory: mocks, and the scratch space that specs know.

    It is leased, and what a killed run left is removed by the next one.
    """

    def __init__(self) -> None:
        parent = _own_folder(Path(tempfile.gettempdir()) / f"harness-shells-{os.geteuid()}")
        sweep(parent)
        self._lease = contextlib.ExitStack()
        self.path = self._lease.enter_context(leased_folder(parent, prefix="run"))
        self._count = 0

    def new_work_dir(self) -> Path:
        self._count += 1
        path = self.path / str(self._count)
        path.mkdir(mode=0o700)
        return path

    def close(self) -> None:
        self._lease.close()


def _own_folder(folder: Path) -> Path:
    """Make a folder in a directory that everybody may write to; refuse what another put there.

    Raises RequirementError.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise RequirementError(
            f"'{folder}' is not a folder of this user alone; remove it, or set TMPDIR."
        )
    return folder


def environment(
    project: Project, spec: Path, scratch: Path, work_dir: Path, mocks: Path
) -> Mapping[str, str]:
    """Return what a spec's shell finds in its environment beside what is there already."""
    options = project.options
    helper_dir = str(project.root / options.helper_dir)
    load_path = [str(project.root / part) for part in options.load_path]
    path = options.path if options.path is not None else os.environ.get("PATH", os.defpath)
    support = project.root / options.helper_dir / "support" / "bin"
    return {
        **dict(_environment_file(project)),
        **dict(options.env),
        "SHELLSPEC_PROJECT_ROOT": str(project.root),
        "SHELLSPEC_CWD": str(project.root),
        "SHELLSPEC_HELPERDIR": helper_dir,
        "SHELLSPEC_SPECFILE": project.relative(spec),
        "SHELLSPEC_TMPBASE": str(scratch),
        "SHELLSPEC_WORKDIR": str(work_dir),
        "SHELLSPEC_SHELL": options.shell,
        "SHELLSPEC_SHELL_TYPE": "bash",
        "SHELLSPEC_SHELL_VERSION": "5",
        "SHELLSPEC_VERSION": _VERSION,
        "SHELLSPEC_LOAD_PATH": ":".join([helper_dir, *load_path]),
        "SHELLSPEC_PATH": path,
        "SHELLSPEC_LIB": str(Path(__file__).parent),
        "SHELLSPEC_SUPPORT_BIN": str(Path(__file__).with_name("support_bin.sh")),
        "HX_MOCKS": str(mocks),
        "HX_REQUIRE": " ".join(options.requires),
        "PATH": f"{support}:{path}",
    }


def _environment_file(project: Project) -> Iterator[tuple[str, str]]:
    if project.options.env_from is None:
        return
    path = project.root / project.options.env_from
    for line in path.read_text().splitlines():
        words = shlex.split(line, comments=True)
        for word in words:
            name, separator, value = word.partition("=")
            if separator:
                yield name, value
