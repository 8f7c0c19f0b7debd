"""No expectation passes, and none refuses a node, on evidence that it needs and lacks.

Each source that is gathered on a node becomes unreadable or fails, one at a time. An expectation that
needs it raises HarnessError; each other one is met as before. What an expectation needs is listed here
apart from the product.
"""

from __future__ import annotations

import contextlib
import glob
import json
import shutil
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import HarnessError
from harness.evidence import CLOUD_INIT_OUTPUT_PATH, CLOUD_INIT_RESULT_PATH, RECORD_PATH
from harness.evidence.gaps import NOT_COLLECTED, UNREADABLE_NAME
from harness.evidence.node_state import FILE_LIMIT_KIB
from harness.evidence.request import guest_request
from harness.evidence.requested import REQUESTED_NAME
from harness.expect.every_node import NODE_EXPECTATIONS, VerdictState, judge_node
from harness.provisioner import EXIT_CODE_PATH
from harness.provisioner.gpu_node import EVENTS_FOLDER, OUTCOME_PATH
from suites.unit.evidence.folders import (
    KERNEL,
    OTHER_KERNEL,
    EvidenceFolder,
    a_serving_node,
    a_stripped_node,
)
from suites.unit.expect.cases import ACCEPTED, TESTED_APART, Case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CDI = ("/etc/cdi/*", "/run/cdi/*")
BUILDS = ("dkms-status", "/var/lib/dkms/nvidia/*")
MODULES = f"/lib/modules/{KERNEL}/updates/dkms/*"
NODES = "/dev/nvidia*"
PROGRAMS = ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-modprobe")

#: What an expectation looks at: commands by their names, files and paths as patterns.
NEEDS: dict[str, tuple[str, ...]] = {
    "provisioned": (OUTCOME_PATH, EXIT_CODE_PATH),
    "cloud_init_clean": (CLOUD_INIT_RESULT_PATH,),
    "cloud_init_reports_failure": (CLOUD_INIT_RESULT_PATH,),
    "decided": (OUTCOME_PATH, CLOUD_INIT_OUTPUT_PATH),
    "prebake_line": (CLOUD_INIT_OUTPUT_PATH,),
    "log_line": (CLOUD_INIT_OUTPUT_PATH,),
    "no_log_line": (CLOUD_INIT_OUTPUT_PATH,),
    "step_of": (OUTCOME_PATH,),
    "step_failed": (OUTCOME_PATH,),
    "run_ended_at": (OUTCOME_PATH,),
    "kernel_running": ("uname-r",),
    "record_names": (RECORD_PATH,),
    "no_record": (RECORD_PATH,),
    "image_present": ("container-images",),
    "image_absent": ("container-images",),
    "module_built_for": (*BUILDS, f"modinfo-{KERNEL}"),
    "no_module_for": (f"modinfo-{OTHER_KERNEL}", f"/lib/modules/{OTHER_KERNEL}/updates/dkms/*"),
    "module_built_before_boot": (MODULES, "/proc/stat"),
    "module_built_since_boot": (MODULES, "/proc/stat"),
    "gpus_on_bus": ("lspci",),
    "no_module_loaded": ("/proc/modules", NODES),
    "unit_state": ("units",),
    "gpu_bound": ("lspci", NODES),
    "gpus_driven": ("lspci",),
    "driver_names_gpus": ("/proc/driver/nvidia/gpus/*/information",),
    "gpus_refused": ("dmesg",),
    "no_gpu": ("lspci",),
    "driver_installed": (*PROGRAMS, "/usr/bin/lib64"),
    "no_driver_artefact": (
        *BUILDS,
        *("/proc/modules", "/usr/bin/*", "/etc/ld.so.conf.d/nvidia.conf"),
        "/lib/modules/*/updates/dkms/nvidia*",
        "/usr/src/nvidia-*",
    ),
    "events_recorded": (f"{EVENTS_FOLDER}/*",),
    "no_event_recorded": (f"{EVENTS_FOLDER}/*",),
    "kernel_log_line": ("dmesg",),
    # These look at what the host recorded.
    "no_bar_access": (),
    "no_bar_access_before": (),
    "bar_access_after": (),
    "gpu_reset": (),
    "has_gpus": ("lspci",),
    "every_gpu_driven": ("lspci", "/proc/driver/nvidia/version", NODES),
    "module_fits_kernel": (
        *("uname-r", f"modinfo-{KERNEL}", f"/lib/modules/{KERNEL}"),
        "/proc/driver/nvidia/version",
    ),
    "driver_tools_installed": PROGRAMS,
    "no_gpu_error_logged": ("dmesg",),
    "record_fits": ("uname-r", RECORD_PATH, "/proc/driver/nvidia/version"),
    "cdi_offers_gpus": (*CDI, NODES),
    "runtime_hands_out_gpus": ("containerd-config",),
    "gpu_services_up": (
        *("failed-units", "units", "/run/systemd/system"),
        "/opt/azure/containers/managed-gpu-experience.enabled",
    ),
}

CASES = {
    **ACCEPTED,
    **{each.judge.__name__: Case(each.judge, node=a_serving_node) for each in NODE_EXPECTATIONS},
}


def needs_of(case: str) -> tuple[str, ...]:
    return NEEDS[case.split(maxsplit=1)[0]]


def samples(pattern: str) -> Iterator[str]:
    """Yield paths that match a pattern of the request."""
    yield pattern.replace("*", "x")
    if pattern.startswith("/lib/modules/*"):
        for kernel in (KERNEL, OTHER_KERNEL):
            yield pattern.replace("*", kernel, 1).replace("*", "x")


REQUEST = guest_request([KERNEL, OTHER_KERNEL])
#: Each folder above something that is gathered, and each file whose text is.
PLACES = sorted(
    {
        str(folder)
        for pattern in (*REQUEST.files, *REQUEST.paths)
        for path in samples(pattern)
        for folder in PurePosixPath(path).parents
    }
    | {path for pattern in REQUEST.files for path in samples(pattern)}
)


def is_below(pattern: str, place: str) -> bool:
    """Return whether something that matches the pattern is the file `place`, or may be in it."""
    parts, above = pattern.split("/"), place.rstrip("/").split("/")
    if pattern == place and place not in REQUEST.files:
        # A closed folder is there.
        return False
    return len(above) <= len(parts) and all(
        fnmatchcase(name, part) for name, part in zip(above, parts, strict=False)
    )


def close(folder: EvidenceFolder, *places: str) -> EvidenceFolder:
    """Let the user who gathered the evidence have had no permission for these files and folders."""
    for place in places:
        kept = folder.root / "files" / place.lstrip("/")
        if kept.is_dir():
            shutil.rmtree(kept)
        kept.unlink(missing_ok=True)
    return _list_closed(folder, *places)


def _list_closed(folder: EvidenceFolder, *places: str) -> EvidenceFolder:
    above = tuple(f"{place.rstrip('/')}/" for place in places)
    lines = (folder.root / "stat.txt").read_text().splitlines()
    folder.paths(*(line for line in lines if not line.split(" ", 4)[4].startswith(above)))
    (folder.root / UNREADABLE_NAME).write_text("".join(f"{place}\n" for place in places))
    return folder


@contextlib.contextmanager
def closed(folder: EvidenceFolder, place: str) -> Iterator[None]:
    """Close a place for the block; a new folder for each would be most of the time of these tests."""
    kept, listed = folder.root / "files" / place.lstrip("/"), folder.root / "stat.txt"
    aside, text = folder.root / "aside", listed.read_text()
    is_kept = kept.exists()
    if is_kept:
        kept.rename(aside)
    _list_closed(folder, place)
    try:
        yield
    finally:
        (folder.root / UNREADABLE_NAME).unlink()
        listed.write_text(text)
        if is_kept:
            aside.rename(kept)


def nodes_of_cases(top: Path) -> Iterator[tuple[EvidenceFolder, list[str]]]:
    """Make each different node of the cases once, and yield it with the names of its cases."""
    names: dict[tuple[object, object], list[str]] = {}
    for name, case in CASES.items():
        names.setdefault((case.node, case.change), []).append(name)
    for number, alike in enumerate(names.values()):
        case = CASES[alike[0]]
        yield case.change(case.node(top / str(number))), alike


def is_unknown(case: str, folder: EvidenceFolder) -> bool:
    try:
        CASES[case].expectation(folder.evidence)
    except HarnessError:
        return True
    return False


def judged(case: str, folder: Path, change: Callable[[EvidenceFolder], object]) -> None:
    made = CASES[case].change(CASES[case].node(folder))
    change(made)
    CASES[case].expectation(made.evidence)


def test_every_expectation_has_an_entry_in_the_table_of_needed_evidence() -> None:
    judges = {each.judge.__name__ for each in NODE_EXPECTATIONS}

    assert set(NEEDS) == set(expect.__all__) - TESTED_APART
    assert {case.split(maxsplit=1)[0] for case in CASES} == set(NEEDS)
    assert judges <= set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_unreadable_path_makes_dependent_results_unknown(tmp_path: Path, case: str) -> None:
    folder = CASES[case].change(CASES[case].node(tmp_path))
    needs = [need for need in needs_of(case) if need[0] == "/"]
    needed = [place for place in PLACES if any(is_below(need, place) for need in needs)]

    passed = []
    for place in needed:
        with closed(folder, place), contextlib.suppress(HarnessError):
            CASES[case].expectation(folder.evidence)
            passed.append(place)
    assert passed == []

    others = [place for place in PLACES if place not in needed]
    close(folder, *others)
    CASES[case].expectation(folder.evidence)


@dataclass(frozen=True)
class Way:
    """A way in which a command gives no answer; `output` None leaves what it printed before."""

    name: str
    exit_code: int | None
    output: str | None = ""

    def apply(self, folder: EvidenceFolder, command: str) -> None:
        kept = folder.root / "commands" / command
        text = kept.read_text() if self.output is None else self.output
        folder.command(command, text, self.exit_code or 0)
        if self.exit_code is None:
            (folder.root / "commands" / f"{command}.exit-code").unlink()


WAYS = (
    Way("timed out", 124),
    Way("timed out after it printed everything", 124, None),
    Way("not allowed to run", 126, "timeout: failed to run command: Permission denied\n"),
    Way("failed", 1, "error: permission denied\n"),
    Way("failed without a word", 1),
    Way("no exit code", None, None),
)
#: These always print something, so that an empty output is that of a broken tool.
NEVER_SILENT = ("uname-r", "units", "dmesg")


@pytest.fixture(scope="session")
def whole_nodes(
    tmp_path_factory: pytest.TempPathFactory,
) -> list[tuple[EvidenceFolder, list[str]]]:
    """Return the nodes of all cases, which each test leaves as good as new."""
    return list(nodes_of_cases(tmp_path_factory.mktemp("nodes")))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@pytest.mark.parametrize("command", REQUEST.commands)
def test_command_without_an_answer_makes_dependent_results_unknown(
    whole_nodes: list[tuple[EvidenceFolder, list[str]]], command: str, way: Way
) -> None:
    """The first failure is also tried with expectations that do not need the command."""
    for folder, alike in whole_nodes:
        cases = [case for case in alike if way is WAYS[0] or command in needs_of(case)]
        _expect_unknown_without(folder, cases, command, way)


@pytest.mark.parametrize("command", NEVER_SILENT)
def test_empty_output_of_a_command_that_always_prints_makes_the_result_unknown(
    whole_nodes: list[tuple[EvidenceFolder, list[str]]], command: str
) -> None:
    for folder, alike in whole_nodes:
        _expect_unknown_without(folder, alike, command, Way("silent", 0))


def _expect_unknown_without(
    folder: EvidenceFolder, cases: list[str], command: str, way: Way
) -> None:
    if not cases:
        return
    answer = folder.root / "commands" / command
    texts = {path: path.read_text() for path in answer.parent.glob(f"{glob.escape(command)}*")}
    if answer.is_file():
        way.apply(folder, command)
    try:
        unknown = [case for case in cases if is_unknown(case, folder)]
    finally:
        for path, text in texts.items():
            path.write_text(text)
    assert unknown == [case for case in cases if command in needs_of(case)]


@pytest.mark.parametrize("command", REQUEST.commands)
def test_command_that_was_not_run_makes_dependent_results_unknown(
    tmp_path: Path, command: str
) -> None:
    for case in (case for case in CASES if command in needs_of(case)):
        with pytest.raises(HarnessError, match=f"no output of '{command}"):
            judged(case, tmp_path / case, lambda made: made.without(f"commands/{command}"))


def forget_files(folder: EvidenceFolder) -> EvidenceFolder:
    shutil.rmtree(folder.root / "files")
    return folder.paths()


def nothing_was_requested(folder: EvidenceFolder) -> None:
    request = {"schema": 1, "commands": {}, "files": [], "paths": []}
    (forget_files(folder).root / REQUESTED_NAME).write_text(json.dumps(request))
    (folder.root / UNREADABLE_NAME).touch()


def gathering_was_interrupted(folder: EvidenceFolder) -> None:
    (forget_files(folder).root / REQUESTED_NAME).write_text('{"schema": 1}')


def guest_did_not_answer(folder: EvidenceFolder) -> None:
    (forget_files(folder).root / NOT_COLLECTED).write_text("the machine has ended\n")


@pytest.mark.parametrize(
    ("change", "known"),
    [
        # The answers of DKMS and modinfo need no file, if these had permission for their folders.
        (nothing_was_requested, {"module_built_for", "no_module_for"}),
        (gathering_was_interrupted, set()),
        (guest_did_not_answer, set()),
    ],
)
def test_evidence_that_was_not_gathered_makes_the_result_unknown(
    tmp_path: Path, change: Callable[[EvidenceFolder], None], known: set[str]
) -> None:
    without_files = {
        case for case in CASES if not any(need.startswith("/") for need in needs_of(case))
    }
    passed = set()
    for folder, alike in nodes_of_cases(tmp_path):
        change(folder)
        passed |= {case for case in alike if not is_unknown(case, folder)}

    assert passed == without_files | known


def test_missing_file_is_unknown_if_only_the_host_gathered_evidence(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path).trace().evidence

    with pytest.raises(HarnessError, match="of the guest is not complete, so an item"):
        evidence.file(EXIT_CODE_PATH)


def test_reason_for_missing_evidence_is_shown(tmp_path: Path) -> None:
    folder = a_stripped_node(tmp_path)
    guest_did_not_answer(folder)

    with pytest.raises(HarnessError, match="The reason is: the machine has ended"):
        expect.no_record(folder.evidence)


CUT = {
    "/proc/modules": ("no_module_loaded", "no_driver_artefact"),
    f"{EVENTS_FOLDER}/1700000001000.json": ("events_recorded", "no_event_recorded"),
    "/run/cdi/nvidia.yaml": ("cdi_offers_gpus",),
}


@pytest.mark.parametrize("path", CUT)
def test_truncated_file_makes_dependent_results_unknown(tmp_path: Path, path: str) -> None:
    def pad(folder: EvidenceFolder) -> None:
        with (folder.root / "files" / path.lstrip("/")).open("a") as file:
            file.truncate(FILE_LIMIT_KIB << 10)

    for case in CUT[path]:
        with pytest.raises(HarnessError, match=f"Only the first 4096 KiB of '{path}'"):
            judged(case, tmp_path / case, pad)


def test_missing_line_is_unknown_if_the_log_is_truncated(tmp_path: Path) -> None:
    line = "AKS_GPU_PREBAKE event=decision\n"
    text = line + "x" * (FILE_LIMIT_KIB << 10)
    evidence = a_serving_node(tmp_path).file(CLOUD_INIT_OUTPUT_PATH, text).evidence

    expect.prebake_line(evidence, event="decision")
    with pytest.raises(
        HarnessError, match=f"Only the first 4096 KiB of '{CLOUD_INIT_OUTPUT_PATH}'"
    ):
        expect.prebake_line(evidence, event="teardown")


def test_unreadable_folders_make_verdicts_unknown_and_not_unmet(tmp_path: Path) -> None:
    places = ("/usr/bin", "/lib/modules", "/var/lib/dkms", "/opt/azure")
    folder = close(a_serving_node(tmp_path / "serving"), *places)
    # A shell that cannot look into /usr/bin does not find the program either.
    folder.command("containerd-config", "timeout: failed to run command\n", 127)
    folder.command(f"modinfo-{KERNEL}", "modinfo: ERROR: Module nvidia not found.\n", 1)

    states = {each.expectation.name: each.state for each in judge_node(folder.evidence)}

    unknown = {name for name, state in states.items() if state is VerdictState.UNKNOWN}
    assert unknown == {"module", "tools", "record", "runtime", "services"}
    assert VerdictState.NOT_MET not in states.values()


def test_present_artefact_is_reported_despite_an_unreadable_folder(tmp_path: Path) -> None:
    """A found artefact fails the expectation, whatever the unreadable folder holds."""
    folder = close(a_stripped_node(tmp_path), "/lib/modules")
    folder.more_paths("f 755 1 1.0 /usr/bin/nvidia-smi")

    with pytest.raises(AssertionError, match=r"these were left: \['/usr/bin/nvidia-smi'\]"):
        expect.no_driver_artefact(folder.evidence)
