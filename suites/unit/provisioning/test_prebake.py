"""The prebake record and the decision."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.provisioning.kernel_modules import (
    DkmsEntry,
    DkmsState,
    ModuleFile,
    ModuleProof,
)
from harness.provisioning.node_files import NodeFiles
from harness.provisioning.prebake import (
    PROVISIONAL_RECORD,
    Action,
    Decision,
    Reason,
    Record,
    Wanted,
    decide,
    parse_record,
    read_record,
)

from .fakes import KERNEL, OTHER_KERNEL, OTHER_VERSION, RECORD_PATH, VERSION, write_record

if TYPE_CHECKING:
    from pathlib import Path

RECORD = Record(kernel=KERNEL, driver_version=VERSION, driver_kind="cuda", arch="x86_64")
WANTED = Wanted(driver_type="cuda-lts", driver_version=VERSION, kernel=KERNEL, arch="x86_64")
ENTRY = DkmsEntry(
    module="nvidia", version=VERSION, kernel=KERNEL, arch="x86_64", state=DkmsState.INSTALLED
)
FILE = ModuleFile(version=VERSION, vermagic=f"{KERNEL} SMP preempt")
PROOF = ModuleProof(is_linker_ready=True, file=FILE, dkms=(ENTRY,))


def nobody_asks() -> ModuleProof:
    raise AssertionError("the record alone decides here")


def test_first_value_of_each_key_of_a_record_is_read() -> None:
    text = (
        f"future=1\nkernel={KERNEL}\n# comment\ndriver_version={VERSION}\n"
        "driver_kind=cuda\narch=x86_64\nkernel=second\n"
    )

    assert parse_record(text) == RECORD
    assert not RECORD.is_corrupt
    assert parse_record(f"kernel=\nkernel={KERNEL}\n").kernel is None
    assert parse_record("kernel=a=b\n").kernel == "a=b"
    assert parse_record(PROVISIONAL_RECORD) == Record()


def test_record_with_an_invalid_field_is_corrupt() -> None:
    lines = ("", "{}=\n", "{}=a b\n", "{}=a\r\n", "{}=\x1b[2J\n", " {}=a\n", "{}\n")
    fields = RECORD.to_json()
    for line, field in itertools.product(lines, fields):
        others = "".join(f"{key}={value}\n" for key, value in fields.items() if key != field)

        record = parse_record(line.format(field) + others)

        assert record == replace(RECORD, **{field: None}), line
        assert record.is_corrupt, line


def test_record_is_none_if_the_file_is_missing_and_corrupt_if_the_path_is_a_folder(
    tmp_path: Path,
) -> None:
    files = NodeFiles(tmp_path)
    files.make_directory("/opt/folder")
    write_record(files)

    assert read_record(files, RECORD_PATH) == RECORD
    assert read_record(files, "/opt/record") is None
    assert read_record(files, "/opt/folder") == Record()


def test_decision_for_an_opted_out_node_is_a_teardown_if_there_is_a_record() -> None:
    teardown = Decision(action=Action.TEARDOWN, reason=Reason.OPTED_OUT)

    assert decide(None, RECORD, nobody_asks) == decide(None, Record(), nobody_asks) == teardown
    assert decide(None, None, nobody_asks) == Decision(action=Action.NOTHING)


def test_decision_for_a_mismatched_record_does_not_check_the_module() -> None:
    older = replace(RECORD, driver_version=OTHER_VERSION)
    rows = {
        None: (Action.INSTALL, Reason.NO_RECORD),
        Record(): (Action.TEARDOWN_INSTALL, Reason.CORRUPT),
        replace(RECORD, driver_kind=None): (Action.TEARDOWN_INSTALL, Reason.CORRUPT),
        replace(RECORD, driver_version=None): (Action.TEARDOWN_INSTALL, Reason.CORRUPT),
        replace(older, driver_kind="grid"): (Action.TEARDOWN_INSTALL, Reason.KIND),
        replace(older, kernel=OTHER_KERNEL): (Action.TEARDOWN_INSTALL, Reason.VERSION),
        replace(RECORD, kernel=OTHER_KERNEL, arch=None): (Action.INSTALL, Reason.KERNEL),
        replace(RECORD, kernel=None): (Action.INSTALL, Reason.KERNEL),
        replace(RECORD, arch=None): (Action.INSTALL, Reason.ARCH),
        replace(RECORD, arch="aarch64"): (Action.INSTALL, Reason.ARCH),
    }

    decided = {record: decide(WANTED, record, nobody_asks) for record in rows}
    assert {record: (each.action, each.reason) for record, each in decided.items()} == rows


def test_build_is_skipped_only_if_the_record_and_the_installed_module_match_the_node() -> None:
    older = ModuleFile(version=OTHER_VERSION, vermagic=OTHER_KERNEL)
    rows = {
        replace(PROOF, is_linker_ready=False): Reason.MODULE,
        replace(PROOF, file=None): Reason.MODULE,
        replace(PROOF, lost=("nvidia-uvm",)): Reason.MODULE,
        replace(PROOF, file=older, dkms=()): Reason.MODULE,
        replace(PROOF, file=replace(FILE, version=None)): Reason.MODULE,
        replace(PROOF, file=replace(FILE, vermagic=f"{OTHER_KERNEL} SMP")): Reason.VERMAGIC,
        replace(PROOF, file=replace(FILE, vermagic=f"{KERNEL}x SMP")): Reason.VERMAGIC,
        replace(PROOF, file=replace(FILE, vermagic="x"), dkms=()): Reason.VERMAGIC,
        replace(PROOF, dkms=(replace(ENTRY, state=DkmsState.BUILT),)): Reason.DKMS,
        replace(PROOF, dkms=()): Reason.DKMS,
    }

    def decision(proof: ModuleProof) -> Decision:
        return decide(WANTED, RECORD, lambda: proof)

    assert decision(PROOF) == Decision(action=Action.INSTALL_SKIP_BUILD, reason=Reason.OK)
    assert {proof: decision(proof) for proof in rows} == {
        proof: Decision(action=Action.INSTALL, reason=reason) for proof, reason in rows.items()
    }


def test_decision_is_rendered_as_a_line_and_as_an_object() -> None:
    nothing = Decision(action=Action.NOTHING)
    teardown = Decision(action=Action.TEARDOWN_INSTALL, reason=Reason.KIND)

    assert nothing.render_line() == "AKS_GPU_PREBAKE event=decision action=nothing reason=-"
    assert teardown.render_line() == (
        "AKS_GPU_PREBAKE event=decision action=teardown-install reason=kind"
    )
    assert nothing.to_json() == {"action": "nothing", "reason": None}
    assert teardown.to_json() == {"action": "teardown-install", "reason": "kind"}
