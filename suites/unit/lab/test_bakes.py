"""What a bake refuses before it boots a machine, which files it removes, and how it converts disks."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from harness.cloudinit import GuestFile
from harness.errors import BadInputError, HarnessError
from harness.lab.bakes import bake_cloud_image, bake_node, clean_script, write_standalone
from harness.lab.cloud_images import AGENT_FILES
from harness.provisioner import ConfigurationFile, Provisioner
from harness.provisioner.outcome import OutcomeDeclaration, OutcomeFile
from harness.provisioning.command import CommandResult, LocalRunner
from suites.unit.lab.builders import a_cloud_image

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.lab import Lab


def test_bake_without_a_driver_is_refused(lab: Lab) -> None:
    with pytest.raises(BadInputError) as refused:
        bake_cloud_image(lab, a_cloud_image(driver=None))

    assert str(refused.value) == (
        "/cloud-images/disk.qcow2: No driver is named for a bake of the image 'noble'; set the key "
        "'driver' in the image's entry, or pass --driver to the command."
    )


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.qcow2").write_text("mine")

    with pytest.raises(BadInputError) as refused:
        write_standalone(a_cloud_image(), tmp_path / "mine.qcow2")

    place = tmp_path / "mine.qcow2"
    assert str(refused.value) == f"{place}: The file exists already."

    assert (tmp_path / "mine.qcow2").read_text() == "mine"


def test_failed_conversion_of_a_disk_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: LocalRunner, argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        return CommandResult(
            argv=tuple(argv),
            exit_code=1,
            stdout="",
            stderr="qemu-img: No space left on device",
            duration_s=timeout_s,
        )

    monkeypatch.setattr(LocalRunner, "run", refuse)

    with pytest.raises(HarnessError, match="No space left on device"):
        write_standalone(a_cloud_image(), tmp_path / "mine.qcow2")

    assert list(tmp_path.iterdir()) == []


MINE = Provisioner(
    name="mine",
    source="/p/mine.yaml",
    run=["/opt/mine/run"],
    files=[
        GuestFile(path="/opt/mine/lib/words.sh", content=b""),
        GuestFile(path="/opt/it's mine", content=b""),
        GuestFile(path="/opt/mine/library", content=b""),
    ],
    folders=["/opt/mine/lib"],
    configuration=ConfigurationFile(path="/etc/mine"),
    outcome=OutcomeDeclaration(file=OutcomeFile(path="/var/lib/mine.json")),
)


def test_clean_script_removes_the_files_of_the_provisioner_and_the_agent() -> None:
    lines = clean_script(MINE).splitlines()

    removed = {
        word for line in lines if line.startswith("rm ") for word in shlex.split(line.strip())
    }
    assert {file.path for file in MINE.files[1:]} < removed
    assert {"/etc/mine", "/var/lib/mine.json", "/opt/mine/lib"} < removed
    # The seed also installed the agent.
    assert set(AGENT_FILES) < removed


def test_bake_is_refused_if_the_provisioner_declares_no_bake_command(lab: Lab) -> None:
    for bake in (
        lambda: bake_node(lab, provisioner=MINE),
        lambda: bake_cloud_image(lab, a_cloud_image(), provisioner=MINE),
    ):
        with pytest.raises(
            BadInputError, match=r"^/p/mine\.yaml: key 'bake': .* declares no command 'bake'"
        ):
            bake()
