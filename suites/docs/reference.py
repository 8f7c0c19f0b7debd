"""What the code says of the things that tables in the pages list.

A row that ends with None goes on with prose of the page's own, which only a reader can judge.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from fnmatch import fnmatch
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from harness import expect, plugin
from harness.agent import frames
from harness.cli import bench_shell, build_parser
from harness.cli.bench import MEASURES
from harness.cli.bench_gpu import GPU_MEASURES
from harness.cli.doctor import examine
from harness.errors import RequirementError
from harness.evidence.request import guest_request
from harness.expect.node import NODE_EXPECTATIONS
from harness.gpu.catalogue import ModelFile, NodeFile, load_catalogue
from harness.gpu.transport import Transport, choose_transport, parse_qemu_version
from harness.image.catalogue import RecipeFile
from harness.image.catalogue import load_catalogue as load_images
from harness.image.source import Stock, StockFile
from harness.lab.node import NodeRequest
from harness.machine.libvirt import health
from harness.plugin import specfiles
from harness.plugin.report import _ATTACHED
from harness.provisioning import exit_codes
from harness.provisioning.__main__ import COMMANDS
from harness.provisioning.boot import make_plan
from harness.provisioning.command import CommandResult
from harness.provisioning.configuration import Configuration, parse_configuration
from harness.provisioning.facts import look
from harness.provisioning.kernel_modules import DkmsEntry, DkmsState, ModuleFile, ModuleProof
from harness.provisioning.outcome import Outcome
from harness.provisioning.prebake import Decision, Reason, Record, Wanted, decide
from harness.settings import Settings
from suites.docs.pages import REPOSITORY
from suites.e2e.real_driver.expected import NAMES
from suites.unit.provisioning import fakes
from suites.unit.provisioning.simulation import SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest import Parser  # noqa: PT013 - a type alone

    from suites.docs.pages import Table

Row: TypeAlias = "tuple[str | None, ...]"

_QEMU_VERSIONS = ("6.2.0", "7.2.0", "8.2.0", "9.0.0", "10.0.0", "10.1.1", "11.1.0")
_PREBAKE_LINE = re.compile(r"AKS_GPU_PREBAKE event=(\w+)")


def check_table(table: Table, expected: Sequence[Row]) -> None:
    """Refuse a table that lacks a row, has one too many, or says of one what is not so."""
    seen = {row[0]: row for row in table.rows}
    wanted = {row[0]: row for row in expected}
    troubles = [
        *(
            f"'{name}' is not listed; write {_render(wanted[name])}"
            for name in wanted.keys() - seen
        ),
        *(f"'{name}' is listed, but the code has none" for name in seen.keys() - wanted),
        *(
            f"'{name}' is listed as {_render(seen[name])}, but the code says {_render(row)}"
            for name, row in wanted.items()
            if name in seen and not _agrees(seen[name], row)
        ),
    ]
    if len(seen) < len(table.rows):
        troubles.append("a name is listed twice")
    if troubles:
        raise table.place.refuse("; ".join(sorted(troubles)) + ".")


def _agrees(seen: Sequence[str], wanted: Row) -> bool:
    return len(seen) == len(wanted) and all(
        cell if code is None else cell == code for cell, code in zip(seen, wanted, strict=True)
    )


def _render(row: Row) -> str:
    return f"| {' | '.join('…' if cell is None else cell for cell in row)} |"


def expectations() -> list[Row]:
    rows: list[Row] = []
    for name in expect.__all__:
        function = getattr(expect, name)
        parameters = [
            str(parameter.replace(annotation=parameter.empty)).replace(" ", "")
            for parameter in inspect.signature(function).parameters.values()
        ]
        rows.append((f"{name}({', '.join(parameters)})", _first_line(function)))
    return rows


def node_expectation_rows() -> list[Row]:
    return [(each.name, each.words) for each in NODE_EXPECTATIONS]


def fixtures() -> list[Row]:
    """Return name, scope and docstring of every fixture, from the source that defines them."""
    return [
        (node.name, _scope(decorator), (ast.get_docstring(node) or "").splitlines()[0])
        for file in sorted((REPOSITORY / "fixtures").glob("*.py"))
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if "pytest.fixture" in ast.unparse(decorator)
    ]


def _scope(decorator: ast.expr) -> str:
    words = decorator.keywords if isinstance(decorator, ast.Call) else []
    return next(
        (ast.literal_eval(word.value) for word in words if word.arg == "scope"), "function"
    )


def agent_frames() -> list[Row]:
    return [(name, f"0x{kind:02x}", None, None) for kind, name in frames.NAMES.items()]


def request_fields() -> list[Row]:
    return [(field.name, _default(field), None) for field in dataclasses.fields(NodeRequest)]


def _default(field: dataclasses.Field[object]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return _value(field.default_factory())
    return "required" if field.default is dataclasses.MISSING else _value(field.default)


def _value(value: object) -> str:
    if value is None or value in ((), {}, []):
        return "none"
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


class _Options:
    """Takes the place of pytest's parser and its groups, to learn which options are added."""

    def __init__(self) -> None:
        self.added: list[tuple[str, dict[str, object]]] = []

    def getgroup(self, *_words: str) -> _Options:
        return self

    def addoption(self, name: str, **attributes: object) -> None:
        self.added.append((name, attributes))

    def addini(self, name: str, help: str, **attributes: object) -> None:  # noqa: A002
        """Take an ini option; the pages show those of the command line."""


def pytest_options(add: Callable[[Parser], None] = plugin.pytest_addoption) -> list[Row]:
    options = _Options()
    add(options)  # type: ignore[arg-type]  # all of a parser that it uses
    return [
        (
            name,
            _value(attributes.get("default")),
            str(attributes["help"]).partition(" (default")[0],
        )
        for name, attributes in options.added
    ]


def harness_commands() -> list[Row]:
    groups = (action for action in build_parser()._actions if isinstance(action.choices, dict))
    return [(f"harness {entry.dest}", entry.help) for entry in next(groups)._choices_actions]  # type: ignore[attr-defined]


def provisioning_commands() -> list[Row]:
    return [(name, words) for name, (words, _) in COMMANDS.items()]


def configuration_keys() -> list[Row]:
    return [(field.name, _default(field), None) for field in dataclasses.fields(Configuration)]


def exit_code_rows() -> list[Row]:
    """Return number, name and meaning; the meanings stand below the members in the source."""
    tree = ast.parse(inspect.getsource(exit_codes.ExitCode))
    (definition,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    meanings: dict[str, str | None] = {}
    name = ""
    for node in definition.body:
        if isinstance(node, ast.Assign):
            name = ast.unparse(node.targets[0])
        elif name and isinstance(node, ast.Expr):
            meanings[name] = inspect.cleandoc(ast.literal_eval(node.value)).replace("\n", " ")
    return [
        (str(code.value), code.name, (meanings.get(code.name) or "").replace("`", "") or None)
        for code in exit_codes.ExitCode
    ]


def reasons() -> list[Row]:
    """Return every reason with the action that `decide` chooses for it."""
    fits = Record(kernel="6.1", driver_version="580.1", driver_kind="cuda", arch="x86_64")
    wanted = Wanted(driver_type="cuda-lts", driver_version="580.1", kernel="6.1", arch="x86_64")
    built = DkmsEntry(
        module="nvidia", version="580.1", kernel="6.1", arch="x86_64", state=DkmsState.BUILT
    )
    installed = dataclasses.replace(built, state=DkmsState.INSTALLED)
    right = ModuleFile(version="580.1", vermagic="6.1 SMP")
    proof = ModuleProof(is_linker_ready=True, file=right, dkms=(installed,))
    cases: Sequence[tuple[Wanted | None, Record | None, ModuleProof]] = (
        (None, fits, proof),
        (wanted, None, proof),
        (wanted, Record(), proof),
        (wanted, dataclasses.replace(fits, driver_kind="grid"), proof),
        (wanted, dataclasses.replace(fits, driver_version="570.1"), proof),
        (wanted, dataclasses.replace(fits, kernel="6.2"), proof),
        (wanted, dataclasses.replace(fits, arch="aarch64"), proof),
        (wanted, fits, dataclasses.replace(proof, file=None)),
        (wanted, fits, dataclasses.replace(proof, file=ModuleFile(version="580.1", vermagic="6"))),
        (wanted, fits, dataclasses.replace(proof, dkms=(built,))),
        (wanted, fits, proof),
    )
    decisions = [_decide(*case) for case in cases]
    actions = {decision.reason: decision.action.value for decision in decisions}
    return [
        (reason.value, actions.get(reason, "no case here leads to it"), None) for reason in Reason
    ]


def _decide(wanted: Wanted | None, record: Record | None, proof: ModuleProof) -> Decision:
    return decide(wanted, record, lambda: proof)


def outcome_keys() -> list[Row]:
    return [(key, None) for key in ("schema", "exit_name", *_outcome_fields())]


def _outcome_fields() -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(Outcome))


def prebake_lines() -> list[Row]:
    sources = sorted((REPOSITORY / "harness" / "provisioning").glob("*.py"))
    found = (name for file in sources for name in _PREBAKE_LINE.findall(file.read_text()))
    return [(name, None) for name in dict.fromkeys(found)]


def events(top: Path) -> list[Row]:
    """Return the names of all events that the plans of differently asked-for nodes have.

    The plans are made, by the code itself, of simulated nodes below `top`.
    """
    managed = {**fakes.GPU_NODE, "enable_managed_gpu": True, "gpu_needs_fabric_manager": True}
    asked: Sequence[Mapping[str, object]] = (
        {**managed, "gpu_instance_profile": "MIG1g"},
        {**fakes.GPU_NODE, "gpu_driver_type": "grid"},
        {**fakes.GPU_NODE, "config_gpu_driver_if_needed": False},
        {**fakes.GPU_NODE, "enable_managed_gpu_dra": True},
        {},
    )
    names = {
        name
        for number, fields in enumerate(asked)
        for name in _events_of(top / str(number), fields)
    }
    return [(name, None) for name in sorted(names)]


def _events_of(top: Path, fields: Mapping[str, object]) -> Iterator[str]:
    simulated = SimulatedNode(top)
    fakes.write_record(simulated.root)
    node = fakes.make_node(simulated, top)
    configuration = parse_configuration(fields, {})
    facts = look(node, configuration, is_read_only=True)
    for step in make_plan(configuration, facts, fakes.PROGRAM).steps:
        yield from step.groups
        if step.event is not None:
            yield step.event


def recipe_keys() -> list[Row]:
    return list(_keys(RecipeFile))


def stock_keys() -> list[Row]:
    return list(_keys(StockFile))


def stock_images() -> list[Row]:
    entries = load_images(REPOSITORY / "images").entries.values()
    return [(entry.name, _voucher(entry)) for entry in entries if isinstance(entry, Stock)]


def _voucher(stock: Stock) -> str:
    signature = stock.file.signature
    return "https" if signature is None else f"a signature by {signature.fingerprint}"


def model_keys() -> list[Row]:
    return list(_keys(ModelFile))


def node_keys() -> list[Row]:
    return list(_keys(NodeFile))


def _keys(shape: type, prefix: str = "") -> Iterator[Row]:
    """Yield the keys of a data file's shape, those of the shapes within after a dot."""
    for field in dataclasses.fields(shape):
        inner = _shape_within(shape, str(field.type))
        if inner is None:
            yield f"{prefix}{field.name}", _default(field), None
        else:
            brackets = "[]" if str(field.type).startswith(("tuple", "Annotated[tuple")) else ""
            yield from _keys(inner, f"{prefix}{field.name}{brackets}.")


def _shape_within(shape: type, annotation: str) -> type | None:
    namespace = vars(inspect.getmodule(shape))
    for word in re.findall(r"\w+", annotation):
        found = namespace.get(word)
        # A validator of pydantic's is a dataclass too, but no shape.
        if not inspect.isclass(found) or not found.__module__.startswith("harness."):
            continue
        if dataclasses.is_dataclass(found):
            return found
    return None


def models() -> list[Row]:
    return [(name, model.title, str(model.pci)) for name, model in load_catalogue().models.items()]


def names_under_driver() -> list[Row]:
    return [(name, called or "refused") for name, called in NAMES.items()]


def gpu_nodes() -> list[Row]:
    return [
        (name, f"{node.count} x {node.model.name}", node.vm_size)
        for name, node in load_catalogue().nodes.items()
    ]


def qemu_versions() -> list[Row]:
    """Return for some releases whether one that has the device takes an emulated GPU."""
    return [
        (version, _takes_gpu(version, "tcg"), _takes_gpu(version, "kvm"))
        for version in _QEMU_VERSIONS
    ]


def _takes_gpu(version: str, accelerator: str) -> str:
    """Return the transport of a release whose binary has every device that it could have."""
    try:
        transport = choose_transport(
            device_help="".join(f'name "{one.value}", bus PCI\n' for one in Transport),
            version=parse_qemu_version(f"version {version}"),
            accelerator="kvm" if accelerator == "kvm" else "tcg",
        )
    except RequirementError:
        return "none"
    return transport.value


def evidence_paths() -> list[Row]:
    """Return what is gathered of a node, by its path in the folder, and whether it is attached."""
    request = guest_request(["KERNEL"])
    gathered = [
        *(f"commands/{name}" for name in request.commands),
        *(f"files{path}" for path in request.files),
        "stat.txt",
    ]
    rows: list[Row] = [
        (path, "yes" if any(map(partial(_covers, path), _ATTACHED)) else "no", None)
        for path in gathered
    ]
    others = [name for name in _ATTACHED if not any(_covers(path, name) for path in gathered)]
    return [*rows, *((name, "yes", None) for name in others)]


def _covers(path: str, pattern: str) -> bool:
    """Tell whether files of `path`, itself a pattern, are what `pattern` attaches."""
    return fnmatch(path, pattern.replace("**", "*"))


class _NothingInstalled:
    """Answers as a host on which no command is found."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        del timeout_s, stdin, env
        return CommandResult(argv=tuple(argv), exit_code=127, stdout="", stderr="not found")


def libvirt_requirements() -> list[Row]:
    """Return what `harness doctor` looks at where libvirt is to run machines."""
    return [(name, None) for name in health.REQUIREMENTS]


def requirements(cache: Path) -> list[Row]:
    """Return what `harness doctor` looks for."""
    settings = Settings(cache=cache, qemu="no-such-qemu")
    return [(found.requirement, None) for found in examine(settings, _NothingInstalled())]


def _first_line(function: object) -> str:
    return (inspect.getdoc(function) or "").splitlines()[0].replace("`", "")


#: What is listed, by the first cell of the table's header; a folder is for what has to be made.
TABLES: Mapping[str, Callable[[Path], list[Row]]] = {
    "Command": lambda _: harness_commands(),
    "Option": lambda _: pytest_options(),
    "Option for shell code": lambda _: pytest_options(specfiles.pytest_addoption),
    "Fixture": lambda _: fixtures(),
    "Field": lambda _: request_fields(),
    "Expectation": lambda _: expectations(),
    "Expectation of a node": lambda _: node_expectation_rows(),
    "Path in the folder": lambda _: evidence_paths(),
    "Recipe key": lambda _: recipe_keys(),
    "Stock image": lambda _: stock_images(),
    "Stock key": lambda _: stock_keys(),
    "Measure": lambda _: list(MEASURES.items()),
    "Figure": lambda _: list(bench_shell.FIGURES.items()),
    "GPU measure": lambda _: list(GPU_MEASURES.items()),
    "Model": lambda _: models(),
    "Model key": lambda _: model_keys(),
    "GPU under driver 535": lambda _: names_under_driver(),
    "GPU node": lambda _: gpu_nodes(),
    "GPU node key": lambda _: node_keys(),
    "QEMU": lambda _: qemu_versions(),
    "Provisioning command": lambda _: provisioning_commands(),
    "Configuration key": lambda _: configuration_keys(),
    "Reason": lambda _: reasons(),
    "Exit code": lambda _: exit_code_rows(),
    "Outcome key": lambda _: outcome_keys(),
    "Line's event": lambda _: prebake_lines(),
    "Event": events,
    "Frame": lambda _: agent_frames(),
    "Requirement": requirements,
    "Requirement of libvirt": lambda _: libvirt_requirements(),
}

#: Tables that are checked elsewhere, or of which nothing but their paths and names can be.
PROSE = frozenset({"Path", "Function", "shellspec"})
