"""The methods of a guest, with real commands of this host in place of the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.machine.channels.guest import UNTIL_LISTED, Guest
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["plain", "two words", "it's; $(reboot)", "-n"])
def test_file_with_a_hostile_path_is_written_and_read(tmp_path: Path, name: str) -> None:
    guest = Guest("node", LocalRunner())
    path = tmp_path / name / name

    guest.write_text(str(path), "text\n")

    assert guest.read_text(str(path)) == "text\n"
    assert [each.name for each in path.parent.iterdir()] == [name]
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_absent_file_reads_as_none_in_a_real_shell(tmp_path: Path) -> None:
    assert Guest("node", LocalRunner()).read_text(str(tmp_path / "absent")) is None


@pytest.mark.parametrize(
    ("ids", "count", "timeout_s", "exit_code"),
    [
        ("10de:2330", 1, 30.0, 0),
        ("10de:2330", 2, 30.0, 0),
        ("10de:2330", 3, 0.1, 124),
        ("10de:20b0", 1, 0.1, 124),
    ],
)
def test_script_counts_only_the_requested_pci_functions(
    tmp_path: Path, ids: str, count: int, timeout_s: float, exit_code: int
) -> None:
    """The test runs the script of the guest on a bus of three functions."""
    for slot, vendor, device in (
        ("00:00.0", "0x8086", "0x29c0"),
        ("01:00.0", "0x10de", "0x2330"),
        ("02:00.0", "0x10de", "0x2330"),
    ):
        (tmp_path / slot).mkdir()
        (tmp_path / slot / "vendor").write_text(f"{vendor}\n")
        (tmp_path / slot / "device").write_text(f"{device}\n")
    script = UNTIL_LISTED.replace("/sys/bus/pci/devices", str(tmp_path))
    vendor, _, device = ids.partition(":")

    result = LocalRunner().run(
        ["sh", "-c", script, "wait", f"0x{vendor}:0x{device}", str(count)], timeout_s=timeout_s
    )

    assert result.exit_code == exit_code
