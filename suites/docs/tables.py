"""Returns the rows that hand-written tables of the pages must have according to the code.

None in a row stands for prose, which is not checked.
"""

from __future__ import annotations

import dataclasses
import re
from fnmatch import fnmatch
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from harness.agent import frames
from harness.cli.doctor import examine
from harness.evidence.causes import CAUSES
from harness.evidence.request import guest_request
from harness.machine.libvirt import requirement_checks
from harness.plugin.attachments import _ATTACHED
from harness.provisioning.boot import make_plan
from harness.provisioning.command import CommandResult
from harness.provisioning.configuration import parse_configuration
from harness.provisioning.facts import collect_facts
from harness.provisioning.kernel_modules import DkmsEntry, DkmsState, ModuleFile, ModuleProof
from harness.provisioning.prebake import Decision, Reason, Record, Wanted, decide
from harness.settings import Settings
from harness.shell import fakes as stateful
from suites.docs.pages import REPOSITORY
from suites.e2e.real_driver.expected import NAMES
from suites.unit.provisioning import fakes
from suites.unit.provisioning.simulation import SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from suites.docs.pages import Table

Row: TypeAlias = "tuple[str | None, ...]"

_PREBAKE_LINE = re.compile(r"AKS_GPU_PREBAKE event=(\w+)")


def check_table(table: Table, expected: Sequence[Row]) -> None:
    """Raise an error for a missing row, an extra row, or a wrong value in a row of a table."""
    seen = {row[0]: row for row in table.rows}
    wanted = {row[0]: row for row in expected}
    errors = [
        *(
            f"'{name}' is not listed; write {_render(wanted[name])}"
            for name in wanted.keys() - seen
        ),
        *(f"'{name}' is listed, but the code has none" for name in seen.keys() - wanted),
        *(
            f"'{name}' is listed as {_render(seen[name])}, but the code has {_render(row)}"
            for name, row in wanted.items()
            if name in seen and not _agrees(seen[name], row)
        ),
    ]
    if len(seen) < len(table.rows):
        errors.append("a name is listed twice")
    if errors:
        raise table.place.refuse("; ".join(sorted(errors)) + ".")


def _agrees(seen: Sequence[str], wanted: Row) -> bool:
    return len(seen) == len(wanted) and all(
        cell if code is None else cell == code for cell, code in zip(seen, wanted, strict=True)
    )


def _render(row: Row) -> str:
    return f"| {' | '.join('…' if cell is None else cell for cell in row)} |"


def agent_frames() -> list[Row]:
    return [(name, f"0x{kind:02x}", None, None) for kind, name in frames.NAMES.items()]


def reasons() -> list[Row]:
    """Return all reasons, each with the action that `decide` chooses for it."""
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


def prebake_lines() -> list[Row]:
    sources = sorted((REPOSITORY / "harness" / "provisioning").glob("*.py"))
    found = (name for file in sources for name in _PREBAKE_LINE.findall(file.read_text()))
    return [(name, None) for name in dict.fromkeys(found)]


def events(top: Path) -> list[Row]:
    """Return the names of all events in the plans of differently configured nodes.

    The product code makes the plans, for simulated nodes below `top`.
    """
    managed = {**fakes.GPU_NODE, "enable_managed_gpu": True, "gpu_needs_fabric_manager": True}
    asked: Sequence[Mapping[str, object]] = (
        {**managed, "gpu_instance_profile": "MIG1g"},
        {**fakes.GPU_NODE, "gpu_driver_type": "grid"},
        {**fakes.GPU_NODE, "config_gpu_driver_if_needed": False},
        {**fakes.GPU_NODE, "enable_managed_gpu_dra": True},
        {
            **fakes.GPU_NODE,
            "gpu_driver_type": "grid",
            "precompiled_image": "nvcr.io/nvidia/driver",
        },
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
    fakes.write_record(simulated.files)
    node = fakes.make_node(simulated, top)
    configuration = parse_configuration(fields, {})
    facts = collect_facts(node, configuration, is_read_only=True)
    for step in make_plan(configuration, facts, fakes.PROGRAM).steps:
        yield from step.groups
        if step.event is not None:
            yield step.event


def names_under_driver() -> list[Row]:
    return [(name, called or "refused") for name, called in NAMES.items()]


def evidence_paths() -> list[Row]:
    """Return the files that are collected from a node, by path, and whether each is attached."""
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
    """Return whether `pattern` attaches files that match `path`; both are patterns of paths."""
    return fnmatch(path, pattern.replace("**", "*"))


class _NothingInstalled:
    """A runner that answers like a host that has none of the commands."""

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
    """Return the requirements that `harness doctor` checks for the libvirt driver."""
    return [(name, None) for name in requirement_checks.REQUIREMENTS]


def requirements(cache: Path) -> list[Row]:
    """Return the requirements that `harness doctor` checks."""
    settings = Settings(cache=cache, qemu="no-such-qemu")
    return [(found.requirement, None) for found in examine(settings, _NothingInstalled())]


def stateful_fakes() -> list[Row]:
    """Return the stateful fakes of shell code, and the commands that each answers."""
    made: Sequence[stateful.Fake] = (
        stateful.Systemd(),
        stateful.KernelModules(),
        stateful.Containerd(),
        stateful.Dkms(),
        stateful.Packages(),
        stateful.InstanceMetadata({}),
    )
    return [
        (type(fake).__name__, ", ".join(_shown(name) for name in fake.commands), None, None)
        for fake in made
    ]


def common_causes() -> list[Row]:
    """Return the common causes of failures in the summary of a run, each with its advice."""
    return [(cause.name, None, cause.remedy.replace("`", "")) for cause in CAUSES]


def _shown(command: str) -> str:
    return "curl to 169.254.169.254" if command == "curl" else command


#: The functions that return a table's rows, by the first cell of its header; each gets a folder.
TABLES: Mapping[str, Callable[[Path], list[Row]]] = {
    "Path in the folder": lambda _: evidence_paths(),
    "GPU under driver 535": lambda _: names_under_driver(),
    "Reason": lambda _: reasons(),
    "Line's event": lambda _: prebake_lines(),
    "Event": events,
    "Fake": lambda _: stateful_fakes(),
    "Frame": lambda _: agent_frames(),
    "Common cause": lambda _: common_causes(),
    "Requirement": requirements,
    "Requirement of libvirt": lambda _: libvirt_requirements(),
}
