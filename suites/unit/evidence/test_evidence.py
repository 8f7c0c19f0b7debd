"""The typed view of an evidence folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.evidence import CLOUD_INIT_OUTPUT_PATH, RECORD_PATH, node_state
from harness.evidence.node_state import PathStat
from harness.evidence.outcome import ReportedStep, parse_log_steps
from harness.provisioner import EXIT_CODE_PATH, RUNS_FOLDER
from harness.provisioner.gpu_node import EVENTS_FOLDER, OUTCOME_PATH
from suites.unit.evidence.folders import KERNEL, OTHER_KERNEL, EvidenceFolder, a_gpu_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.evidence import Evidence


def test_outcome_has_its_steps_or_is_none_without_an_outcome_file(tmp_path: Path) -> None:
    folder = a_gpu_node(tmp_path)
    outcome = folder.evidence.outcome

    assert outcome is not None
    assert (outcome.exit_code, outcome.action, outcome.reason) == (0, "install-skip-build", "ok")
    assert outcome.steps == (
        ReportedStep(name="install-driver", status="done", duration_s=1.5),
        ReportedStep(name="restart-dcgm", status="failed", duration_s=0.1, detail="slow"),
    )
    assert folder.without(f"files{OUTCOME_PATH}").evidence.outcome is None


def test_event_names_are_listed_in_the_order_of_the_event_files(
    tmp_path: Path,
) -> None:
    folder = EvidenceFolder(tmp_path).event("2", "AKS.CSE.y").event("1", "AKS.CSE.x")
    folder.file(f"{EVENTS_FOLDER}/3.json", '{\n  "TaskName": "AKS.CSE.z"\n}\n')

    assert folder.evidence.event_names == ["AKS.CSE.x", "AKS.CSE.y", "AKS.CSE.z"]


def test_error_for_an_invalid_event_file_names_the_file(tmp_path: Path) -> None:
    for text in ("{", "[]", "{}", "1"):
        evidence = EvidenceFolder(tmp_path).file(f"{EVENTS_FOLDER}/1.json", text).evidence

        with pytest.raises(HarnessError, match=r"event file '.*/1\.json' has another format"):
            _ = evidence.event_names


def test_exit_code_and_events_are_read_separately_for_each_run(
    tmp_path: Path,
) -> None:
    folder = EvidenceFolder(tmp_path).file(EXIT_CODE_PATH, "9\n")
    for number in (1, 2, 3):
        kept = f"{RUNS_FOLDER}/{number}"
        folder.file(f"{kept}/exit-code", "79"[number > 1])
        folder.file(f"{kept}/failed-command", f"{'779'[number - 1]}\n{number}\na.sh\nfalse\n")
        folder.event(str(number), f"AKS.CSE.{number}")
        before = "".join(f"{EVENTS_FOLDER}/{each}.json\n" for each in range(number))
        folder.file(f"{kept}/events-before", before)
    evidence = folder.evidence
    runs = [*map(evidence.of_run, (1, 2, 3)), evidence]

    assert [run.exit_code for run in runs] == [7, 9, 9, 9]
    assert [run.event_names for run in runs] == [[f"AKS.CSE.{each}"] for each in (1, 2, 3, 3)]
    # The second run continued after the failed command that it recorded.
    assert [run.failed_command and run.failed_command.line for run in runs] == [1, None, 3, 3]

    folder.without(f"files{EXIT_CODE_PATH}")
    assert [run.exit_code for run in runs] == [7, 9, None, None]


def test_of_run_returns_outcome_and_steps_of_the_chosen_run(tmp_path: Path) -> None:
    """The first run ended with 9, the second wrote the current outcome, the third wrote nothing."""
    folder = a_gpu_node(tmp_path)
    second = (tmp_path / f"files{OUTCOME_PATH}").read_text()
    first = json.dumps({**json.loads(second), "exit_code": 9, "steps": []})
    folder.file(f"{RUNS_FOLDER}/1/command", "x")
    folder.file(f"{RUNS_FOLDER}/2/outcome-before", first)
    folder.file(f"{RUNS_FOLDER}/3/outcome-before", second)
    evidence = folder.evidence

    outcomes = [evidence.of_run(number).outcome for number in (1, 2, 3)]

    assert [each and each.exit_code for each in outcomes] == [9, 0, None]
    steps = [evidence.of_run(number).steps for number in (1, 2, 3, None)]
    assert [each if each is None else len(each) for each in steps] == [0, 2, None, None]


def test_empty_exit_code_is_none_but_a_non_numeric_exit_code_is_an_error(
    tmp_path: Path,
) -> None:
    assert a_gpu_node(tmp_path).file(EXIT_CODE_PATH, "").evidence.exit_code is None
    with pytest.raises(HarnessError, match=r"was expected to be a number, but is 'zero'"):
        _ = a_gpu_node(tmp_path).file(EXIT_CODE_PATH, "zero").evidence.exit_code


def test_record_lines_are_parsed_as_key_value_pairs(tmp_path: Path) -> None:
    folder = a_gpu_node(tmp_path).file(RECORD_PATH, "A=1\n\nno field\nB=x=y\nA=2\nC=\n")

    assert folder.evidence.record == {"A": "1", "B": "x=y", "C": ""}


def test_error_for_a_failed_command_includes_its_output(tmp_path: Path) -> None:
    evidence = a_gpu_node(tmp_path).command("lspci", "lspci: not found\n", 127).evidence

    with pytest.raises(
        HarnessError,
        match=r"'lspci' ended with exit code 127 .* The command printed: lspci: not found",
    ):
        evidence.answer_of("lspci")


def test_failed_units_and_unit_states_are_read(tmp_path: Path) -> None:
    folder = a_gpu_node(tmp_path)
    folder.command("failed-units", "a.service loaded failed failed A\n  \nb.service loaded failed")

    assert folder.evidence.failed_units == ["a.service", "b.service"]
    assert folder.evidence.unit_states == {"nvidia-dcgm.service": "active"}


def test_vermagic_is_none_without_a_module_for_the_requested_kernel(tmp_path: Path) -> None:
    evidence = a_gpu_node(tmp_path).evidence

    assert evidence.vermagic_of(KERNEL) == f"{KERNEL} SMP mod_unload"
    assert evidence.vermagic_of(OTHER_KERNEL) is None
    # An unreadable folder with another kernel's modules does not matter.
    (tmp_path / "unreadable.txt").write_text(f"/lib/modules/{KERNEL}/updates\n")
    assert evidence.vermagic_of(OTHER_KERNEL) is None
    (tmp_path / "unreadable.txt").write_text(f"/lib/modules/{OTHER_KERNEL}/updates\n")
    with pytest.raises(HarnessError, match=f"permission to read '/lib/modules/{OTHER_KERNEL}"):
        evidence.vermagic_of(OTHER_KERNEL)


def test_copy_of_evidence_is_complete_and_replaces_older_files(tmp_path: Path) -> None:
    source = a_gpu_node(tmp_path / "source").evidence
    target = tmp_path / "kept" / "node"
    (target / "old").mkdir(parents=True)

    assert source.copy_to(target) == target

    files = {path.relative_to(target) for path in target.rglob("*") if path.is_file()}
    assert files == {
        path.relative_to(source.folder) for path in source.folder.rglob("*") if path.is_file()
    }
    assert [path.name for path in target.parent.iterdir()] == ["node"]


def test_copy_that_fails_keeps_the_older_files(tmp_path: Path) -> None:
    target = tmp_path / "kept" / "node"
    target.mkdir(parents=True)
    (target / "old").touch()

    with pytest.raises(HarnessError, match="cannot be copied"):
        EvidenceFolder(tmp_path / "absent").evidence.copy_to(target)

    assert [path.name for path in target.parent.rglob("*")] == ["node", "old"]


def test_pci_functions_are_read_from_sysfs_if_lspci_does_not_run(tmp_path: Path) -> None:
    for exit_code in (126, 127):
        root = tmp_path / str(exit_code)
        gpu = "PCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SLOT_NAME=0000:01:00.0\n"
        folder = (
            a_gpu_node(root)
            .command("lspci", "timeout: failed to run command 'lspci'\n", exit_code)
            .file("/sys/bus/pci/devices/0000:01:00.0/uevent", gpu)
            .more_paths("d 755 0 1.0 /sys/bus/pci/devices")
        )

        (function,) = folder.evidence.pci_functions

        assert (function.vendor, function.device, function.driver_in_use) == ("10de", "2330", None)
        # Earlier versions of the harness did not read the function's configuration space.
        assert function.is_answering is None
        slots = ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0")
        for slot in slots[1:]:
            path = f"/sys/bus/pci/devices/{slot}/uevent"
            folder.file(path, gpu.replace(slots[0], slot))
        read = zip(slots, ("ff ff ff ff", "de 10 30 23"), strict=False)
        folder.command(
            "pci-config",
            "".join(f"\n/sys/bus/pci/devices/{slot}/config {ids}" for slot, ids in read),
        )
        assert [each.is_answering for each in folder.evidence.pci_functions] == [False, True, None]


def test_cdi_specs_are_read_from_etc_cdi_and_run_cdi(tmp_path: Path) -> None:
    folder = (
        a_gpu_node(tmp_path)
        .file(
            "/etc/cdi/own.json",
            '{"cdiVersion": "0.5.0", "kind": "a.b/c", "devices": [{"name": "d", "containerEdits": {"env": ["A=1"]}}]}',
        )
        .file("/etc/cdi/README", "not a spec by its name")
        .file("/run/cdi/nvidia.yaml", "half a sp")
    )

    assert folder.evidence.cdi_devices == {
        "/etc/cdi/own.json": ["a.b/c=d"],
        "/run/cdi/nvidia.yaml": None,
    }


READS: list[tuple[str, Callable[[Evidence], object]]] = [
    ("files/x", lambda e: e.file("/x")),
    ("files/a/x", lambda e: e.files("/a")["x"]),
    ("files/a/x", lambda e: e.matching("/a/?")["/a/x"]),
    ("commands/x", lambda e: e.output_of("x")),
]


def test_undecodable_bytes_in_evidence_are_replaced(tmp_path: Path) -> None:
    folder = a_gpu_node(tmp_path)
    for name, ask in READS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\xff!")

        assert ask(folder.evidence) == "\ufffd!", name


def test_paths_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    folder = a_gpu_node(tmp_path)
    (tmp_path / "stat.txt").write_bytes(b"f 644 1 1.0 /\xff\n")
    (tmp_path / "unreadable.txt").write_bytes(b"/\xfe\n")

    assert list(folder.evidence.paths.seen("/*")) == ["/\ufffd"]
    with pytest.raises(HarnessError, match="permission to read '/\ufffd'"):
        folder.evidence.paths.matching("/?")


def test_log_is_empty_if_the_evidence_has_no_log(tmp_path: Path) -> None:
    evidence = a_gpu_node(tmp_path).without(f"files{CLOUD_INIT_OUTPUT_PATH}").evidence

    assert (evidence.log, evidence.whole_log, evidence.prebake_lines) == ("", "", [])


def test_evidence_of_an_earlier_version_without_a_request_is_treated_as_complete(
    tmp_path: Path,
) -> None:
    """Such evidence lists neither the request nor the unreadable paths."""
    for number, part in enumerate(("commands", "files")):
        folder = tmp_path / str(number)
        (folder / part).mkdir(parents=True)

        assert EvidenceFolder(folder).evidence.file("/x") is None, part


def test_files_of_a_folder_exclude_subfolders_and_are_sorted_by_name(tmp_path: Path) -> None:
    folder = a_gpu_node(tmp_path).file("/a/b/c", "1").file("/a/e", "3").file("/a/d", "2")

    assert list(folder.evidence.files("/a").items()) == [("d", "2"), ("e", "3")]
    assert folder.evidence.files("/a/") == {"d": "2", "e": "3"}
    assert folder.evidence.matching("/a/*") == {"/a/d": "2", "/a/e": "3"}
    assert folder.evidence.file("/a/b") is None
    assert folder.evidence.files("/run/none") == {}


def test_pattern_treats_brackets_as_plain_characters(tmp_path: Path) -> None:
    folder = a_gpu_node(tmp_path).file("/a/[x]", "1").file("/a/x", "2")

    assert folder.evidence.matching("/a/[x]") == {"/a/[x]": "1"}
    assert folder.evidence.matching("/a/?") == {"/a/x": "2"}


def test_gpu_traces_are_sorted_by_gpu_name(tmp_path: Path) -> None:
    folder = a_gpu_node(tmp_path).trace(gpu="gpu1").trace(gpu="gpu0")
    (tmp_path / "host" / "gpu0-trace.txt").touch()

    assert list(folder.evidence.gpu_traces) == ["gpu0", "gpu1"]


def test_copy_that_fails_leaves_no_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: Path, beside: Path) -> None:
        beside.mkdir()
        (beside / "half").touch()
        raise OSError(f"no space for '{source}'")

    source = a_gpu_node(tmp_path / "source").evidence
    monkeypatch.setattr("shutil.copytree", fail)

    with pytest.raises(HarnessError, match="no space"):
        source.copy_to(tmp_path / "kept" / "node")

    assert list((tmp_path / "kept").iterdir()) == []


def test_file_whose_size_equals_the_limit_is_treated_as_truncated(tmp_path: Path) -> None:
    folder = a_gpu_node(tmp_path).file("/x", "")
    kept = tmp_path / "files" / "x"
    with kept.open("r+b") as file:
        file.truncate((node_state.FILE_LIMIT_KIB << 10) - 1)
    folder.evidence.refuse_cut("/x")
    folder.evidence.refuse_cut("/absent")
    with kept.open("r+b") as file:
        file.truncate(node_state.FILE_LIMIT_KIB << 10)

    with pytest.raises(HarnessError, match="Only the first 4096 KiB of '/x'"):
        folder.evidence.refuse_cut("/x")


def test_reading_values_from_a_truncated_file_raises_a_harness_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[tuple[str, Callable[[Evidence], object]]] = [
        ("/etc/cdi/own.json", lambda evidence: evidence.cdi_devices),
        ("/run/cdi/own.yaml", lambda evidence: evidence.cdi_device_nodes),
        (f"{EVENTS_FOLDER}/2.json", lambda evidence: evidence.event_names),
        ("/proc/modules", lambda evidence: evidence.loaded_modules),
        (CLOUD_INIT_OUTPUT_PATH, lambda evidence: evidence.whole_log),
    ]
    for path, ask in rows:
        monkeypatch.setattr(node_state, "FILE_LIMIT_KIB", 1)
        root = tmp_path / path.replace("/", "-")
        folder = a_gpu_node(root).event("1", "AKS.CSE.x").event("2", "AKS.CSE.y")
        folder.file("/etc/cdi/first.json", "{}")
        ask(folder.evidence)

        folder.file(path, "x" * 1024)
        with pytest.raises(HarnessError, match=f"Only the first 1 KiB of '{path}'"):
            ask(folder.evidence)


def test_command_absence_is_unknown_if_a_folder_of_the_path_variable_is_unreadable(
    tmp_path: Path,
) -> None:
    for closed in ("/usr/local/sbin", "/usr/bin", "/bin"):
        folder = a_gpu_node(tmp_path).command("ctr", "", 127).command("lspci", "", 126)
        (tmp_path / "unreadable.txt").write_text("/srv\n")

        assert folder.evidence.is_command_absent("ctr"), closed
        assert not folder.evidence.is_command_absent("lspci"), closed
        (tmp_path / "unreadable.txt").write_text(f"/srv\n{closed}\n")
        with pytest.raises(HarnessError, match=f"permission to read '{closed}'"):
            folder.evidence.is_command_absent("ctr")


def test_evidence_paths_behave_like_a_dictionary(tmp_path: Path) -> None:
    paths = a_gpu_node(tmp_path).paths("f 644 1 1.0 /a/x", "d 755 2 2.0 /a/y").evidence.paths

    assert (len(paths), list(paths), "/a/x" in paths, "/a/z" in paths) == (
        *(2, ["/a/x", "/a/y"]),
        *(True, False),
    )
    assert paths["/a/y"] == PathStat(path="/a/y", kind="d", mode=0o755, size=2, modified_at_s=2.0)
    assert paths.get("/a/z") is None
    assert list(paths.matching("/a/?", "/b/*")) == ["/a/x", "/a/y"]
    assert list(paths.seen("/a/y")) == ["/a/y"]
    with pytest.raises(KeyError):
        paths["/a/z"]


def test_named_groups_of_the_pattern_become_fields_of_a_log_step() -> None:
    pattern = (
        r"(?P<name>\w+)(?: (?P<status>\w+))?(?: (?P<duration_s>[0-9.]+) s)?(?:: (?P<detail>.*))?"
    )
    log = "driver failed 1.5 s: slow\ncdi\ndriver done 2 s\n"

    assert parse_log_steps(log, pattern) == [
        ReportedStep(name="driver", status="done", duration_s=2.0),
        ReportedStep(name="cdi"),
    ]
    (step,) = parse_log_steps(log.partition("\n")[0], pattern)
    assert step == ReportedStep(name="driver", status="failed", duration_s=1.5, detail="slow")
