"""What people read where evidence does not tell: whole sentences."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.evidence import RECORD_PATH, Evidence, node_state
from harness.evidence.gaps import NOT_COLLECTED, UNREADABLE_NAME
from harness.evidence.outcome import parse_log_steps
from harness.evidence.requested import REQUESTED_NAME
from harness.provisioner import EXIT_CODE_PATH
from suites.unit.evidence.folders import KERNEL, EvidenceFolder, a_gpu_node
from suites.unit.provisioning.goldens import expect_golden

if TYPE_CHECKING:
    from collections.abc import Callable

    Ask = Callable[[EvidenceFolder], object]

GOLDENS = Path(__file__).parent / "goldens"


def beside(folder: EvidenceFolder, name: str, text: str) -> Evidence:
    """Write a file of the evidence folder itself."""
    (folder.root / name).write_text(text)
    return folder.evidence


def requested(folder: EvidenceFolder, **document: object) -> Evidence:
    beside(folder, UNREADABLE_NAME, "")
    return beside(folder, REQUESTED_NAME, json.dumps(document))


def padded(folder: EvidenceFolder, path: str) -> Evidence:
    os.truncate(folder.file(path, "x").root / f"files{path}", node_state.FILE_LIMIT_KIB << 10)
    return folder.evidence


NOTHING = {"schema": 1, "files": ["/a/*.x"], "paths": ["/b"]}

ASKED: dict[str, Ask] = {
    "copy": lambda f: Evidence(f.root / "absent").copy_to(f.root / "copy"),
    "closed file": lambda f: beside(f, UNREADABLE_NAME, "/x\n/y/z\n").file("/y/z"),
    "closed folder": lambda f: beside(f, UNREADABLE_NAME, "/x\n/y\n").file("/y/z"),
    "closed folder of files": lambda f: beside(f, UNREADABLE_NAME, "/y/z\n").files("/y/"),
    "closed folder of a pattern": lambda f: beside(f, UNREADABLE_NAME, "/y/z\n").matching(
        "/y/?/*"
    ),
    "closed folder of a path": lambda f: beside(f, UNREADABLE_NAME, "/y\n").paths["/y/z"],
    "closed folder of all paths": lambda f: list(beside(f, UNREADABLE_NAME, "/y\n").paths),
    "closed folder of their number": lambda f: len(beside(f, UNREADABLE_NAME, "/y\n").paths),
    "closed folder of programs": lambda f: beside(
        f.command("c", "", 127), UNREADABLE_NAME, "/usr/bin\n"
    ).is_command_absent("c"),
    "closed folder of DKMS": lambda f: beside(f, UNREADABLE_NAME, "/var/lib/dkms\n").dkms_builds,
    "closed folder of modules": lambda f: beside(
        f.command(f"modinfo-{KERNEL}", "not found", 1), UNREADABLE_NAME, "/lib/modules\n"
    ).vermagic_of(KERNEL),
    "file not gathered": lambda f: requested(f, **NOTHING).file("/a/b"),
    "files not gathered": lambda f: requested(f, **NOTHING).files("/a"),
    "pattern not gathered": lambda f: requested(f, **NOTHING).matching("/a/*"),
    "path not gathered": lambda f: requested(f, **NOTHING).paths["/a"],
    "paths not gathered": lambda f: requested(f, **NOTHING).paths.matching("/b", "/b*"),
    "request without files": lambda f: requested(f, schema=1).file("/a"),
    "request of another schema": lambda f: requested(f, **NOTHING | {"schema": 2}).file("/a"),
    "interrupted": lambda f: beside(f, REQUESTED_NAME, "{}").file("/a"),
    "not collected": lambda f: beside(f, NOT_COLLECTED, "the guest is gone\n").file("/a"),
    "cut": lambda f: padded(f, "/proc/modules").loaded_modules,
    "cut log": lambda f: padded(f, "/var/log/cloud-init-output.log").whole_log,
    "no output": lambda f: f.evidence.output_of("x"),
    "no exit code": lambda f: f.without("commands/lspci.exit-code").evidence.answer_of("lspci"),
    "odd exit code": lambda f: beside(f, "commands/lspci.exit-code", "?").exit_code_of("lspci"),
    "failed": lambda f: f.command("lspci", "o" * 600 + "\n", 2).evidence.answer_of("lspci"),
    "failed silently": lambda f: f.command("lspci", "\n", 2).evidence.answer_of("lspci"),
    "silent": lambda f: f.command("uname-r", "\n").evidence.running_kernel,
    "silent kernel": lambda f: f.command("dmesg", "").evidence.kernel_log,
    "silent systemd": lambda f: f.command("units", "").evidence.unit_states,
    "no file of the kernel": lambda f: f.without("files/proc/stat").evidence.booted_at_s,
    "odd file of the kernel": lambda f: f.file("/proc/stat", "cpu").evidence.booted_at_s,
    "odd modules": lambda f: f.file("/proc/modules", "x").evidence.loaded_modules,
    "odd exit code of provisioning": lambda f: f.file(EXIT_CODE_PATH, "x").evidence.exit_code,
    "no bus": lambda f: f.command("lspci", "", 126).evidence.pci_functions,
    "odd function": lambda f: f.command("lspci", "01:00.0 3D controller").evidence.pci_functions,
    "odd function in sysfs": lambda f: (
        f.command("lspci", "", 127)
        .more_paths("d 755 0 1.0 /sys/bus/pci/devices")
        .file("/sys/bus/pci/devices/0000:01:00.0/uevent", "DRIVER=x\n")
        .evidence.pci_functions
    ),
    "odd driver": lambda f: f.file("/proc/driver/nvidia/version", "x").evidence.driver_version,
    "error of DKMS": lambda f: f.command("dkms-status", "x\nError! Bad.").evidence.dkms_builds,
    "no paths": lambda f: f.without("stat.txt").evidence.paths,
    "odd path": lambda f: f.paths("f 644 1 1.0 /a", "b").evidence.paths,
    "modinfo failed": lambda f: f.command(
        f"modinfo-{KERNEL}", "could not get modinfo", 1
    ).evidence.vermagic_of(KERNEL),
    "odd duration": lambda _: parse_log_steps("a 1.x", r"(?P<name>\w) (?P<duration_s>\S+)"),
}


def test_gaps_are_worded(tmp_path: Path) -> None:
    rows = []
    for number, (name, ask) in enumerate(ASKED.items()):
        folder = tmp_path / str(number)
        with pytest.raises(HarnessError) as caught:
            ask(a_gpu_node(folder))
        assert caught.value.evidence in {folder, None}
        place = "" if caught.value.evidence is None else " (evidence)"
        sentence = caught.value.sentence.replace(str(folder), "FOLDER")
        rows.append(f"{name}{place}\n    {sentence}")

    expect_golden("gaps", "\n\n".join(rows), GOLDENS)


def test_record_that_is_closed_is_unknown(tmp_path: Path) -> None:
    folder = a_gpu_node(tmp_path).without(f"files{RECORD_PATH}")

    with pytest.raises(HarnessError, match="no permission"):
        _ = beside(folder, UNREADABLE_NAME, "/opt/azure\n").record
