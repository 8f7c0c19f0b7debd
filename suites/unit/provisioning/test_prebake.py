"""The prebake record and the decision."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

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
    write_record,
)

from .fakes import KERNEL, OTHER_KERNEL, OTHER_VERSION, VERSION

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


def test_record_is_read_by_key() -> None:
    text = (
        f"future=1\nkernel={KERNEL}\n# comment\ndriver_version={VERSION}\n"
        "driver_kind=cuda\narch=x86_64\nkernel=second\n"
    )

    assert parse_record(text) == RECORD
    assert not RECORD.is_corrupt


@pytest.mark.parametrize(
    "line", ["", "{}=\n", "{}=a b\n", "{}=a\tb\n", "{}=a\r\n", "{}=\x1b[2J\n", " {}=a\n", "{}\n"]
)
def test_record_with_an_invalid_field_is_corrupt(line: str) -> None:
    fields = RECORD.to_json()
    for field in fields:
        others = "".join(f"{key}={value}\n" for key, value in fields.items() if key != field)

        record = parse_record(line.format(field) + others)

        assert record == replace(RECORD, **{field: None})
        assert record.is_corrupt


def test_first_of_two_equal_keys_of_a_record_is_read_even_if_it_is_empty() -> None:
    record = parse_record(f"kernel=\nkernel={KERNEL}\n")

    assert record.kernel is None


def test_value_of_a_record_may_contain_an_equals_sign() -> None:
    assert parse_record("kernel=a=b\n").kernel == "a=b"


def test_written_record_has_the_same_fields_when_it_is_read(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)

    write_record(files, "/opt/record", RECORD)

    assert read_record(files, "/opt/record") == RECORD
    assert files.at("/opt/record").stat().st_mode & 0o7777 == 0o644
    assert files.read("/opt/record") == (
        f"kernel={KERNEL}\ndriver_version={VERSION}\ndriver_kind=cuda\narch=x86_64\n"
    )


def test_missing_record_is_read_as_none_and_a_folder_in_its_place_is_read_as_corrupt(
    tmp_path: Path,
) -> None:
    files = NodeFiles(tmp_path)
    files.make_directory("/opt/folder")

    assert read_record(files, "/opt/record") is None
    assert read_record(files, "/opt/folder") == Record()


def test_record_of_an_unfinished_bake_is_corrupt() -> None:
    assert parse_record(PROVISIONAL_RECORD) == Record()


@pytest.mark.parametrize("record", [RECORD, Record()])
def test_decision_for_an_opted_out_node_with_a_record_is_a_teardown(record: Record) -> None:
    assert decide(None, record, nobody_asks) == Decision(
        action=Action.TEARDOWN, reason=Reason.OPTED_OUT
    )


def test_decision_for_an_opted_out_node_without_a_record_is_to_do_nothing() -> None:
    assert decide(None, None, nobody_asks) == Decision(action=Action.NOTHING)


@pytest.mark.parametrize(
    ("record", "action", "reason"),
    [
        (None, Action.INSTALL, Reason.NO_RECORD),
        (Record(), Action.TEARDOWN_INSTALL, Reason.CORRUPT),
        (replace(RECORD, driver_kind=None), Action.TEARDOWN_INSTALL, Reason.CORRUPT),
        (replace(RECORD, driver_version=None), Action.TEARDOWN_INSTALL, Reason.CORRUPT),
        (
            replace(RECORD, driver_kind="grid", driver_version=OTHER_VERSION),
            Action.TEARDOWN_INSTALL,
            Reason.KIND,
        ),
        (
            replace(RECORD, driver_version=OTHER_VERSION, kernel=OTHER_KERNEL),
            Action.TEARDOWN_INSTALL,
            Reason.VERSION,
        ),
        (replace(RECORD, kernel=OTHER_KERNEL, arch=None), Action.INSTALL, Reason.KERNEL),
        (replace(RECORD, kernel=None), Action.INSTALL, Reason.KERNEL),
        (replace(RECORD, arch=None), Action.INSTALL, Reason.ARCH),
        (replace(RECORD, arch="aarch64"), Action.INSTALL, Reason.ARCH),
    ],
)
def test_decision_on_a_mismatched_record_runs_no_command(
    record: Record | None, action: Action, reason: Reason
) -> None:
    assert decide(WANTED, record, nobody_asks) == Decision(action=action, reason=reason)


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        (replace(PROOF, is_linker_ready=False), Reason.MODULE),
        (replace(PROOF, file=None), Reason.MODULE),
        (replace(PROOF, lost=("nvidia-uvm",)), Reason.MODULE),
        (
            replace(PROOF, file=ModuleFile(version=OTHER_VERSION, vermagic=OTHER_KERNEL), dkms=()),
            Reason.MODULE,
        ),
        (replace(PROOF, file=replace(FILE, version=None)), Reason.MODULE),
        (replace(PROOF, file=replace(FILE, vermagic=f"{OTHER_KERNEL} SMP")), Reason.VERMAGIC),
        (replace(PROOF, file=replace(FILE, vermagic=f"{KERNEL}x SMP")), Reason.VERMAGIC),
        (replace(PROOF, dkms=(replace(ENTRY, state=DkmsState.BUILT),)), Reason.DKMS),
        (replace(PROOF, dkms=()), Reason.DKMS),
        (
            replace(PROOF, file=replace(FILE, vermagic="x"), dkms=()),
            Reason.VERMAGIC,
        ),
    ],
)
def test_driver_is_built_again_if_its_module_is_not_proved(
    proof: ModuleProof, reason: Reason
) -> None:
    assert decide(WANTED, RECORD, lambda: proof) == Decision(action=Action.INSTALL, reason=reason)


def test_build_is_skipped_if_record_and_proof_match_the_node() -> None:
    assert decide(WANTED, RECORD, lambda: PROOF) == Decision(
        action=Action.INSTALL_SKIP_BUILD, reason=Reason.OK
    )


def test_decision_is_rendered_as_a_line_and_as_an_object() -> None:
    nothing = Decision(action=Action.NOTHING)
    teardown = Decision(action=Action.TEARDOWN_INSTALL, reason=Reason.KIND)

    assert nothing.render_line() == "AKS_GPU_PREBAKE event=decision action=nothing reason=-"
    assert teardown.render_line() == (
        "AKS_GPU_PREBAKE event=decision action=teardown-install reason=kind"
    )
    assert nothing.to_json() == {"action": "nothing", "reason": None}
    assert teardown.to_json() == {"action": "teardown-install", "reason": "kind"}
