"""Each question that the evidence does not answer gets an error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.evidence import RECORD_PATH, Evidence
from harness.evidence.gaps import NOT_COLLECTED, UNREADABLE_NAME
from harness.evidence.requested import REQUESTED_NAME
from suites.unit.evidence.folders import KERNEL, EvidenceFolder, a_gpu_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Ask = Callable[[EvidenceFolder], object]


def beside(folder: EvidenceFolder, name: str, text: str) -> Evidence:
    """Write a file directly into the evidence folder."""
    (folder.root / name).write_text(text)
    return folder.evidence


def requested(folder: EvidenceFolder, **document: object) -> Evidence:
    beside(folder, UNREADABLE_NAME, "")
    return beside(folder, REQUESTED_NAME, json.dumps(document))


NOTHING = {"schema": 1, "files": ["/a/*.x"], "paths": ["/b"]}

ASKED: dict[str, Ask] = {
    "copy": lambda f: Evidence(f.root / "absent").copy_to(f.root / "copy"),
    "closed file": lambda f: beside(f, UNREADABLE_NAME, "/x\n/y/z\n").file("/y/z"),
    "closed folder": lambda f: beside(f, UNREADABLE_NAME, "/x\n/y\n").file("/y/z"),
    "closed folder of files": lambda f: beside(f, UNREADABLE_NAME, "/y/z\n").files("/y/"),
    "closed folder of a pattern": lambda f: beside(f, UNREADABLE_NAME, "/y/z\n").matching(
        "/y/?/*"
    ),
    "closed file beside another": lambda f: beside(
        f.file("/y/a", "1"), UNREADABLE_NAME, "/x\n/y/z\n"
    ).files("/y"),
    "closed file beside another of a pattern": lambda f: beside(
        f.file("/y/a", "1"), UNREADABLE_NAME, "/x\n/y/z\n"
    ).matching("/y/?"),
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
    "interrupted": lambda f: beside(f, REQUESTED_NAME, "{}").file("/a"),
    "not collected": lambda f: beside(f, NOT_COLLECTED, "the guest is gone\n").file("/a"),
    "no output": lambda f: f.evidence.output_of("x"),
    "no exit code": lambda f: f.without("commands/lspci.exit-code").evidence.answer_of("lspci"),
    "odd exit code": lambda f: beside(f, "commands/lspci.exit-code", "?").exit_code_of("lspci"),
    "failed": lambda f: f.command("lspci", "o" * 600 + "\n", 2).evidence.answer_of("lspci"),
    "failed silently": lambda f: f.command("lspci", "\n", 2).evidence.answer_of("lspci"),
    "silent": lambda f: f.command("uname-r", "\n").evidence.running_kernel,
    "silent kernel": lambda f: f.command("dmesg", "").evidence.kernel_log,
    "silent systemd": lambda f: f.command("units", "").evidence.unit_states,
    "no file of the kernel": lambda f: f.without("files/proc/stat").evidence.booted_at_s,
    "no bus": lambda f: f.command("lspci", "", 126).evidence.pci_functions,
    "no paths": lambda f: f.without("stat.txt").evidence.paths,
    "modinfo of Debian's name failed": lambda f: (
        f.command(f"modinfo-{KERNEL}", "not found", 1)
        .command(f"nvidia-current-modinfo-{KERNEL}", "could not get modinfo", 1)
        .evidence.vermagic_of(KERNEL)
    ),
    "modinfo without the field": lambda f: f.command(
        f"modinfo-{KERNEL}", "filename: /lib/modules/nvidia.ko\n"
    ).evidence.vermagic_of(KERNEL),
    "modinfo failed": lambda f: f.command(
        f"modinfo-{KERNEL}", "could not get modinfo", 1
    ).evidence.vermagic_of(KERNEL),
}


WITHOUT_A_FOLDER = ("copy", "odd exit code", "no bus")


def test_error_for_missing_evidence_has_the_path_of_the_evidence_folder(tmp_path: Path) -> None:
    for gap, ask in ASKED.items():
        folder = a_gpu_node(tmp_path / gap)

        with pytest.raises(HarnessError) as caught:
            ask(folder)

        assert not isinstance(caught.value, AssertionError), gap
        assert caught.value.evidence == (None if gap in WITHOUT_A_FOLDER else folder.root), gap


def test_unreadable_record_raises_a_harness_error(tmp_path: Path) -> None:
    folder = a_gpu_node(tmp_path).without(f"files{RECORD_PATH}")

    with pytest.raises(HarnessError, match="no permission"):
        _ = beside(folder, UNREADABLE_NAME, "/opt/azure\n").record
