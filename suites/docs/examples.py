"""Checks blocks of Python, YAML and JSON of the pages, in a copy of the repository."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import os
import re
import shlex
import shutil
import sys
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence.outcome import ProvisioningOutcome
from harness.gpu.catalogue import load_catalogue, read_model
from harness.gpu.passthrough.inventory import read_inventory
from harness.image.catalogue import read_recipe
from harness.plugin.allure_report import _CATEGORIES
from harness.provisioner import gpu_node
from harness.provisioner.yaml_file import read_provisioner
from harness.provisioning.command import LocalRunner
from harness.provisioning.configuration import ConfigurationError, parse_configuration
from suites.docs import collect
from suites.docs.commands import CommandLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from suites.docs.pages import Block, Place

_FILE_COMMENT = re.compile(r"# (\S+/\S+\.(?:py|sh|yaml))\n")
_SYSTEM_FILE = re.compile(r"# (/etc/[\w./-]+)")
_PYTEST_S = 1800.0

#: With these options, a run leaves no files in the copy and skips the garbage collection at its end.
LIGHT = ("-p", "no:cacheprovider", "-p", "no:unraisableexception")

#: With these options, pytest finds fixtures but sets up none, runs no test and starts no worker.
PLAN_ONLY = ("--setup-plan", "-q", "-n0", *LIGHT)

#: The parts of the repository that examples may use.
_COPIED = ("suites", "fixtures", "images", "conftest.py", "pyproject.toml")


def file_name(block: Block) -> str | None:
    """Return the path in the first line of a block, or None."""
    found = _FILE_COMMENT.match(block.text)
    return None if found is None else found[1]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of pytest for one argument list."""

    exit_code: int
    output: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """A command or test of a page that pytest must accept."""

    place: Place
    arguments: tuple[str, ...]

    @classmethod
    def to_plan(cls, place: Place, arguments: Sequence[str]) -> Request:
        """Check the options, tests and fixtures of a command; nothing runs."""
        return cls(place=place, arguments=(*arguments, *PLAN_ONLY))

    @classmethod
    def to_run(cls, block: Block) -> Request:
        """Run a test that a page shows."""
        return cls(place=block.place, arguments=(str(file_name(block)), *LIGHT))

    def check(self, answer: Answer) -> None:
        if answer.exit_code != 0:
            raise self.place.refuse(
                f"pytest ends with {answer.exit_code} on this:\n{answer.output}"
            )


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """A copy of the repository, to which the files of the examples are written."""

    folder: Path
    repository: Path
    plugin_arguments: tuple[str, ...]

    def prepare(self) -> None:
        for name in _COPIED:
            source = self.repository / name
            if source.is_dir():
                shutil.copytree(source, self.folder / name, ignore=self._left_out)
            else:
                shutil.copyfile(source, self.folder / name)

    def _left_out(self, folder: str, names: Sequence[str]) -> list[str]:
        """Leave out byte code, and the tests of two suites, since pytest needs time to collect them."""
        suites = self.repository / "suites"
        is_unit = any(Path(folder).is_relative_to(suites / name) for name in ("unit", "docs"))
        return [name for name in names if name == "__pycache__" or (is_unit and _is_test(name))]

    def put(self, block: Block) -> Path:
        """Write a block to the file that it names; refuse to overwrite a file with another text."""
        name = str(file_name(block))
        target = self.folder / name
        if target.exists() and target.read_text() != block.text:
            raise block.place.refuse(f"The file '{name}' is there already, with another text.")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.text)
        return target

    def pytest(self, requests: Sequence[Request]) -> dict[Request, Answer]:
        """Run pytest in the copy, once for each request."""
        given = [[*request.arguments, *self.plugin_arguments] for request in requests]
        path = os.pathsep.join((str(self.folder), str(self.repository)))
        result = LocalRunner().run(
            ["env", "-C", str(self.folder), sys.executable, collect.__file__],
            timeout_s=_PYTEST_S,
            stdin=json.dumps(given),
            env={"PYTHONPATH": path},
        )
        answers = json.loads(result.check("Running pytest").stdout)
        return {
            request: Answer(exit_code=code, output=output)
            for request, (code, output) in zip(requests, answers, strict=True)
        }


def _is_test(name: str) -> bool:
    return name.startswith(("test_", "conftest")) or name.endswith("_spec.sh")


def run(block: Block) -> None:
    """Run a block of Python in the current folder; refuse a block that raises an exception."""
    check_names(block)
    try:
        exec(compile(block.text, str(block.place), "exec"), {})  # noqa: S102 - our own pages
    except Exception as error:
        raise block.place.refuse(f"The code raises {error!r}.") from error


def check_names(block: Block) -> None:
    """Refuse Python that imports a missing name, or calls an imported name with wrong arguments.

    Imported names are resolved, so that code in function bodies that do not run is checked too:
    `expect.gpu_bound(evidence, device=…)` needs that function with that argument.
    """
    try:
        tree = ast.parse(block.text)
    except SyntaxError as error:
        raise block.place.refuse(f"This is not Python: {error}.") from error
    imported = dict(_imported(block.place, tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            _resolve(block.place, node, imported)
        elif isinstance(node, ast.Call):
            _check_call(block.place, node, imported)


def _imported(place: Place, tree: ast.Module) -> Iterator[tuple[str, object]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name, _module(place, alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, _member(place, str(node.module), alias.name)


def _module(place: Place, name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise place.refuse(f"There is no module '{name}'.") from error


def _member(place: Place, module: str, name: str) -> object:
    owner = _module(place, module)
    if not hasattr(owner, name):
        return _module(place, f"{module}.{name}")
    return getattr(owner, name)


def _resolve(place: Place, node: ast.expr, imported: Mapping[str, object]) -> object | None:
    """Return the object that a dotted name refers to, or None if the first part is not imported."""
    if isinstance(node, ast.Name):
        return imported.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    owner = _resolve(place, node.value, imported)
    if owner is None:
        return None
    if not hasattr(owner, node.attr):
        name = getattr(owner, "__name__", repr(owner))
        raise place.refuse(f"'{name}' has no '{node.attr}'.")
    found: object = getattr(owner, node.attr)
    return found


def _check_call(place: Place, node: ast.Call, imported: Mapping[str, object]) -> None:
    function = _resolve(place, node.func, imported)
    has_stars = any(isinstance(argument, ast.Starred) for argument in node.args)
    if not callable(function) or has_stars or any(word.arg is None for word in node.keywords):
        return
    try:
        inspect.signature(function).bind(*node.args, **{str(w.arg): w for w in node.keywords})
    except TypeError as error:
        raise place.refuse(f"'{ast.unparse(node)}' is no call of it: {error}.") from error
    except ValueError:  # built in, without a signature
        return


def check_yaml(block: Block, file: Path) -> None:
    """Raise an error for an invalid data file; its folder or name decides which reader checks it."""
    read: Callable[[Path], object] = read_recipe if file.parent.name == "images" else read_model
    if file.name == "provisioner.yaml":
        read = read_provisioner
    elif file.name == "gpus.yaml":
        read = functools.partial(read_inventory, models=load_catalogue().models)
    try:
        read(file)
    except HarnessError as error:
        raise block.place.refuse(str(error)) from error


def system_file(block: Block) -> str:
    """Return the path on a host of the file in an `ini` block, from the block's first line."""
    found = _SYSTEM_FILE.match(block.text)
    if found is None:
        raise block.place.refuse("The first line has to name a file below '/etc'.")
    return found[1]


def unit_commands(block: Block) -> Iterator[CommandLine]:
    """Yield the commands of a systemd unit, with the program's name instead of its path."""
    if not system_file(block).endswith((".service", ".timer")):
        return
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # systemd's keys have capitals
    unit.read_string(block.text)
    for key, value in unit["Service"].items() if unit.has_section("Service") else ():
        if key.startswith("Exec"):
            program, *arguments = shlex.split(value)
            yield CommandLine(place=block.place, words=(Path(program).name, *arguments))


def check_json(block: Block) -> None:
    """Raise an error for an invalid document; the word after `json` decides which reader checks it."""
    try:
        if block.kind == "configuration":
            parse_configuration(json.loads(block.text), {})
        elif block.kind == "outcome":
            assert gpu_node.OUTCOME.file is not None
            ProvisioningOutcome.from_json(block.text, gpu_node.OUTCOME.file)
        elif block.kind == "allure":
            # Allure 3 is configured with what the harness writes for Allure 2.
            names = [each["name"] for each in json.loads(block.text)["categories"]]
            if names != [each["name"] for each in _CATEGORIES]:
                raise block.place.refuse(f"The categories are not those of a run: {names}.")
        else:
            raise block.place.refuse(
                "Write 'json configuration' or 'json outcome', or 'json allure', at the fence."
            )
    except (ValueError, HarnessError, ConfigurationError) as error:
        raise block.place.refuse(str(error)) from error
