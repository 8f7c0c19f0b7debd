"""Reads the options of a spec project from its `.shellspec` files."""

from __future__ import annotations

import fnmatch
import functools
import os
import re
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.shell.lexer import split_words
from harness.shell.shells import BASH, SpecShell, find_shell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.shell.lexer import Word

OPTION_FILES = (".shellspec", ".shellspec-local")
_IGNORED_WITH_VALUE = {
    "--format", "-f", "--output", "-o", "--reportdir", "--jobs", "-j", "--random", "--color-mode",
    "--kcov-path", "--kcov-options", "--kcov-common-options", "--covdir", "--tmpdir", "--failure-exit-code",
    "--error-exit-code", "--profile-limit", "--log-file", "--docker", "--directory", "-c",
    "--chdir", "-C", "--skip-message", "--pending-message", "--timeout",
}  # fmt: skip
_IGNORED = {
    "--color", "--no-color", "--kcov", "--no-kcov", "--quiet", "-q", "--profile", "-p",
    "--no-profile", "--fail-fast", "--no-fail-fast", "--xtrace", "-x", "--no-xtrace",
    "--xtrace-only", "-X", "--quick", "--no-quick", "--repair", "-r", "--only-failures", "--next", "--next-failure", "-n", "--banner", "--no-banner", "--deref",
    "--no-deref", "--dereference", "-L", "--keep-tmpdir", "--no-keep-tmpdir", "--keep-tempdir",
    "--fail-no-examples", "--no-fail-no-examples", "--fail-low-coverage",
    "--no-fail-low-coverage", "--warning-as-failure", "--no-warning-as-failure", "-w", "--no-focus", "--boost", "--no-boost", "--dry-run",
    "--show-deprecations", "--hide-deprecations", "--no-timeout",
}  # fmt: skip
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


@dataclass(frozen=True, kw_only=True)
class SpecOptions:
    """The options in `.shellspec` files that change how specs run; other options of shellspec are ignored."""

    shell: SpecShell = BASH
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
    mocks_only: bool = False
    sandbox_path: str = ""


_TEXT_OPTIONS: dict[str, Callable[[SpecOptions, str], SpecOptions]] = {
    "--helperdir": lambda options, value: replace(options, helper_dir=value),
    "--pattern": lambda options, value: replace(options, pattern=value),
    "-P": lambda options, value: replace(options, pattern=value),
    "--env-from": lambda options, value: replace(options, env_from=value),
    "--path": lambda options, value: replace(options, path=value),
    "--execdir": lambda options, value: replace(options, exec_dir=value),
    "--sandbox-path": lambda options, value: replace(options, sandbox_path=value),
    "--require": lambda options, value: replace(options, requires=(*options.requires, value)),
    "--load-path": lambda options, value: replace(options, load_path=(*options.load_path, value)),
    "-I": lambda options, value: replace(options, load_path=(*options.load_path, value)),
    "--tag": lambda options, value: replace(options, tags=(*options.tags, *value.split(","))),
    "-T": lambda options, value: replace(options, tags=(*options.tags, *value.split(","))),
    "--example": lambda options, value: replace(options, examples=(*options.examples, value)),
    "-E": lambda options, value: replace(options, examples=(*options.examples, value)),
}
_WITH_VALUE = {*_TEXT_OPTIONS, "--shell", "-s", "--default-path", "-D", "--env", "-e"}


def read_options(root: Path) -> SpecOptions:
    """Read the option files of the project at `root`.

    Raises BadInputError for an option that does not exist or that this runner does not support.
    """
    options = SpecOptions()
    for name in OPTION_FILES:
        path = root / name
        if not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(f"The file cannot be read: {error}.", source=str(path)) from error
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                shlex.split(line, comments=True)
            except ValueError as error:
                raise BadInputError(f"{error}.", source=str(path), line=number) from error
            options = _apply(options, split_words(line), path, number)
    if options.mocks_only and options.shell == BASH:
        bash = shutil.which("bash") or "/bin/bash"
        return replace(options, shell=replace(BASH, command=(bash,)))
    return options


def _apply(options: SpecOptions, words: Sequence[Word], path: Path, line: int) -> SpecOptions:
    source = str(path)
    rest = iter(words)
    for word in rest:
        option, separator, value = _split_option(word.text)
        literal = word.literal
        if option in _IGNORED:
            options = _switch(options, option)
            continue
        if option in {"--focus", "-F"}:
            options = replace(options, focus=True)
            continue
        if option in {"--sandbox", "--no-sandbox"}:
            options = replace(options, mocks_only=option == "--sandbox")
            continue
        if option not in _WITH_VALUE | _IGNORED_WITH_VALUE:
            raise BadInputError(f"There is no option '{option}'.", source=source, line=line)
        if not separator:
            found = next(rest, None)
            if found is None:
                raise BadInputError(f"'{option}' needs a value.", source=source, line=line)
            value, literal = found.text, found.literal
        if option in _WITH_VALUE:
            if not literal:
                value = _expand(value, path, line)
            options = _set(options, option, value, source, line)
    return options


def _expand(value: str, path: Path, line: int) -> str:
    """Expand variables of the environment in an option, as shellspec does.

    Raises BadInputError for a command substitution, because option files are read outside of the
    sandbox.
    """
    left = _VARIABLE.sub("", value)
    if "$" in left or "`" in left:
        raise BadInputError(
            f"In this file, only '$NAME' and '${{NAME}}' are expanded; replace '{value}' by the text "
            "that it stands for.",
            source=str(path),
            line=line,
        )
    variables = {**os.environ, "PWD": str(path.parent)}
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], ""), value)


def _split_option(word: str) -> tuple[str, str, str]:
    if not word.startswith("--") and len(word) > 2:
        return word[:2], "=", word[2:]
    return word.partition("=")


def _switch(options: SpecOptions, option: str) -> SpecOptions:
    if option in {"--warning-as-failure", "-w", "--no-warning-as-failure"}:
        return replace(options, warning_as_failure=not option.startswith("--no-"))
    return replace(options, focus=False) if option == "--no-focus" else options


def _set(options: SpecOptions, option: str, value: str, source: str, line: int) -> SpecOptions:
    if option in {"--shell", "-s"}:
        return replace(options, shell=find_shell(value, source=source, line=line))
    if option == "--env-from" and not (Path(source).parent / value).is_file():
        raise BadInputError(f"'{option} {value}' names no file.", source=source, line=line)
    if option in {"--env", "-e"}:
        name, _, text = value.partition("=")
        return replace(options, env=(*options.env, (name, text)))
    change = _TEXT_OPTIONS.get(option)
    return options if change is None else change(options, value)


def is_spec(path: Path) -> bool:
    """Return whether a file matches the pattern of specs in the options of its project.

    The pattern must match the file's name, its path in the project, or its whole path. A Python
    file is never a spec. If the project's options cannot be read, a file named `*_spec.sh` counts
    as a spec, and the collection of this file reports the error.
    """
    if path.suffix == ".py":
        return False
    try:
        root, pattern = _root_and_pattern(path.parent)
    except BadInputError:
        return fnmatch.fnmatchcase(path.name, SpecOptions.pattern)
    # `*` also matches `/`, and a bar separates alternatives
    return any(
        fnmatch.fnmatchcase(text, each)
        for each in pattern.split("|")
        for text in (path.name, str(path), str(path.relative_to(root)))
    )


@functools.cache
def _root_and_pattern(directory: Path) -> tuple[Path, str]:
    """Return the project's directory, or `/` if there is no project, and the pattern of the project's specs."""
    if (directory / ".shellspec").is_file():
        return directory, read_options(directory).pattern
    if directory == directory.parent:
        return directory, SpecOptions.pattern
    return _root_and_pattern(directory.parent)
