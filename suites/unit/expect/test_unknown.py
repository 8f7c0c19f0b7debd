"""An expectation neither passes nor refuses a node if evidence that it needs is missing.

Each source that an expectation needs becomes unreadable or fails, one at a time, and the expectation
raises HarnessError. If all sources that the expectation does not need become unreadable, it is still
met. `NEEDS` lists the sources of each expectation, and is independent of the product's code.
"""

from __future__ import annotations

import json
import shutil
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import HarnessError
from harness.evidence import (
    CLOUD_INIT_OUTPUT_PATH,
    CLOUD_INIT_RESULT_PATH,
    RECORD_PATH,
    node_state,
)
from harness.evidence.gaps import NOT_COLLECTED, UNREADABLE_NAME
from harness.evidence.request import guest_request
from harness.evidence.requested import REQUESTED_NAME, is_match
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
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

CDI = ("/etc/cdi/*", "/run/cdi/*")
BUILDS = ("dkms-status", "/var/lib/dkms/nvidia/*")
MODULES = f"/lib/modules/{KERNEL}/updates/dkms/*"
NODES = "/dev/nvidia*"
PROGRAMS = ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-modprobe")

#: The evidence that each expectation reads: names of commands, and patterns of files and paths.
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
    # These expectations read only what the host recorded.
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


REQUEST = guest_request([KERNEL, OTHER_KERNEL])


def is_text(need: str) -> bool:
    """Return whether an expectation needs the text of the file, and not only its path."""
    return any(is_match(need, each) for each in REQUEST.files)


def place_of(need: str) -> str:
    """Return the path whose permissions can hide a need: the file itself, or the folder of a path."""
    path = PurePosixPath(need.replace("*", "x"))
    return str(path if is_text(need) else path.parent)


#: Each folder above a gathered path, and each file whose text is gathered.
PLACES = sorted(
    {
        str(place)
        for pattern in (*REQUEST.files, *REQUEST.paths)
        for path in [PurePosixPath(pattern.replace("*", "x"))]
        for place in ((path, *path.parents) if pattern in REQUEST.files else path.parents)
    }
)


def is_above(place: str, need: str) -> bool:
    """Return whether `place` is a needed file, or a folder that may contain a needed path."""
    above = place.rstrip("/").split("/")
    parts = need.split("/")[: len(above)]
    return len(parts) == len(above) and all(map(fnmatchcase, above, parts))


def close(folder: EvidenceFolder, *places: str) -> EvidenceFolder:
    """Change the evidence as if the gathering user had no permission for these files and folders."""
    above = tuple(f"{place.rstrip('/')}/" for place in places)
    top = folder.root / "files"
    for path in [path for path in top.rglob("*") if path.is_file()]:
        if f"/{path.relative_to(top)}/".startswith(above):
            path.unlink()
    lines = (folder.root / "stat.txt").read_text().splitlines()
    folder.paths(*(line for line in lines if not line.split(" ", 4)[4].startswith(above)))
    (folder.root / UNREADABLE_NAME).write_text("".join(f"{place}\n" for place in places))
    return folder


def is_unknown(case: str, folder: EvidenceFolder) -> bool:
    try:
        CASES[case].expectation(folder.evidence)
    except HarnessError:
        return True
    return False


def node_of(case: str, folder: Path) -> EvidenceFolder:
    return CASES[case].change(CASES[case].node(folder))


def test_every_expectation_has_an_entry_in_the_table_of_needed_evidence() -> None:
    judges = {each.judge.__name__ for each in NODE_EXPECTATIONS}

    assert set(NEEDS) == set(expect.__all__) - TESTED_APART
    assert {case.split(maxsplit=1)[0] for case in CASES} == set(NEEDS)
    assert judges <= set(CASES)


def test_unreadable_path_makes_dependent_results_unknown(tmp_path: Path) -> None:
    needed = {(case, place_of(n)) for case in CASES for n in needs_of(case) if n[0] == "/"}

    known = [
        (case, place)
        for number, (case, place) in enumerate(sorted(needed))
        if not is_unknown(case, close(node_of(case, tmp_path / str(number)), place))
    ]

    assert known == []


def test_result_is_known_even_if_evidence_that_is_not_needed_is_missing(
    tmp_path: Path,
) -> None:
    unknown = []
    for case in CASES:
        needs = needs_of(case)
        others = (each for each in PLACES if not any(is_above(each, need) for need in needs))
        folder = close(node_of(case, tmp_path / case), *others)
        for answer in (folder.root / "commands").glob("*.exit-code"):
            if answer.stem not in needs:
                folder.command(answer.stem, "", TIMED_OUT)
        if is_unknown(case, folder):
            unknown.append(case)

    assert unknown == []


TIMED_OUT = 124


def prints(output: str, exit_code: int) -> Callable[[Path], None]:
    def replace(answer: Path) -> None:
        answer.write_text(output)
        answer.with_name(f"{answer.name}.exit-code").write_text(f"{exit_code}\n")

    return replace


def times_out_after_it_printed_everything(answer: Path) -> None:
    answer.with_name(f"{answer.name}.exit-code").write_text(f"{TIMED_OUT}\n")


def has_no_exit_code(answer: Path) -> None:
    answer.with_name(f"{answer.name}.exit-code").unlink()


def was_not_run(answer: Path) -> None:
    answer.unlink()


def known_without_an_answer(
    folder: Path, commands: Iterable[str], fails: Mapping[str, Callable[[Path], None]]
) -> list[tuple[str, str, str]]:
    """Return each case that is known although a needed command failed, with that command."""
    known = []
    for case in CASES:
        for command in set(commands).intersection(needs_of(case)):
            node = node_of(case, folder / case / command)
            for name, fail in fails.items():
                fail(node.root / "commands" / command)
                if not is_unknown(case, node):
                    known.append((case, command, name))
    return known


def test_result_is_unknown_if_a_needed_command_fails_or_was_not_run(tmp_path: Path) -> None:
    fails = {
        "timed out": times_out_after_it_printed_everything,
        "not started": prints("timeout: failed to run command: Permission denied\n", 126),
        "failed": prints("error: permission denied\n", 1),
        "failed silently": prints("", 1),
        # These commands have no exit code in the evidence.
        "no exit code": has_no_exit_code,
        "not run": was_not_run,
    }
    assert known_without_an_answer(tmp_path, REQUEST.commands, fails) == []

    always_print = ("uname-r", "units", "dmesg")
    assert known_without_an_answer(tmp_path, always_print, {"empty": prints("", 0)}) == []


def nothing_was_requested(folder: EvidenceFolder) -> None:
    request = {"schema": 1, "commands": {}, "files": [], "paths": []}
    (folder.root / REQUESTED_NAME).write_text(json.dumps(request))
    (folder.root / UNREADABLE_NAME).touch()


def guest_did_not_answer(folder: EvidenceFolder) -> None:
    (folder.root / NOT_COLLECTED).write_text("the machine has ended\n")


def test_evidence_that_was_not_gathered_makes_the_result_unknown(tmp_path: Path) -> None:
    of_files = {case for case in CASES if any(need[0] == "/" for need in needs_of(case))}

    known, known_of_answer = set(), set()
    for case in of_files:
        folder = node_of(case, tmp_path / case).paths()
        shutil.rmtree(folder.root / "files")
        guest_did_not_answer(folder)
        if not is_unknown(case, folder):
            known.add(case)
        nothing_was_requested(folder.without(NOT_COLLECTED))
        if not is_unknown(case, folder):
            known_of_answer.add(case)

    assert known == set()
    # DKMS and modinfo had permission for their folders, so their output is enough.
    assert known_of_answer == {"module_built_for", "no_module_for"}


def test_missing_file_is_unknown_without_evidence_from_the_guest(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path).trace().evidence

    with pytest.raises(HarnessError, match="of the guest is not complete, so an item"):
        evidence.file(EXIT_CODE_PATH)


def test_missing_line_is_unknown_if_the_log_is_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_state, "FILE_LIMIT_KIB", 1)
    text = "AKS_GPU_PREBAKE event=decision\n".ljust(1024, "x")
    evidence = a_serving_node(tmp_path).file(CLOUD_INIT_OUTPUT_PATH, text).evidence

    expect.prebake_line(evidence, event="decision")
    with pytest.raises(HarnessError, match=f"Only the first 1 KiB of '{CLOUD_INIT_OUTPUT_PATH}'"):
        expect.prebake_line(evidence, event="teardown")


def test_unreadable_folders_make_verdicts_unknown_instead_of_unmet(tmp_path: Path) -> None:
    places = ("/usr/bin", "/lib/modules", "/var/lib/dkms", "/opt/azure")
    folder = close(a_serving_node(tmp_path / "serving"), *places)
    # A shell without permission for /usr/bin does not find the program either.
    folder.command("containerd-config", "timeout: failed to run command\n", 127)
    folder.command(f"modinfo-{KERNEL}", "modinfo: ERROR: Module nvidia not found.\n", 1)

    states = {each.expectation.name: each.state for each in judge_node(folder.evidence)}

    unknown = {name for name, state in states.items() if state is VerdictState.UNKNOWN}
    assert unknown == {"module", "tools", "record", "runtime", "services"}
    assert VerdictState.NOT_MET not in states.values()


def test_present_artefact_is_reported_despite_an_unreadable_folder(tmp_path: Path) -> None:
    """One found artefact is enough to fail the expectation, whatever the unreadable folder contains."""
    folder = close(a_stripped_node(tmp_path), "/lib/modules")
    folder.more_paths("f 755 1 1.0 /usr/bin/nvidia-smi")

    with pytest.raises(AssertionError, match=r"these were left: \['/usr/bin/nvidia-smi'\]"):
        expect.no_driver_artefact(folder.evidence)
