"""The firmware file is an ELF file with the sections that NVIDIA's driver looks for."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from harness.cli import main
from harness.gpu.gsp.firmware import FILES, make_firmware

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def sections(file: bytes) -> dict[str, bytes]:
    """Find sections as the driver does: by the table of headers, and names that end with a zero byte."""
    assert file[:6] == b"\x7fELF\2\1"
    (table,) = struct.unpack_from("<Q", file, 40)
    size, count, names_index = struct.unpack_from("<HHH", file, 58)
    assert size == 64
    assert len(file) >= table + size * count
    headers = [struct.unpack_from("<IIQQQQ", file, table + size * index) for index in range(count)]
    _, _, _, _, names_at, names_size = headers[names_index]
    names = file[names_at : names_at + names_size]
    found = {}
    for name, _, _, _, start, length in headers:
        assert name < names_size
        assert start + length <= len(file)
        found[names[name : names.index(b"\0", name)].decode()] = file[start : start + length]
    return found


def test_firmware_file_has_a_version_and_an_image_and_one_signature_per_family() -> None:
    for families in FILES.values():
        found = sections(make_firmware("550.163.01", families))

        assert found[".fwversion"] == b"550.163.01\0"
        assert found[".fwimage"]
        for family in families:
            assert found[f".fwsignature_{family}"]


def test_firmware_command_writes_both_files_into_the_folder_of_the_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = "535.261.03"
    assert main(["gpu", "firmware", release, f"--output={tmp_path}"]) == 0

    files = sorted(tmp_path.glob("**/*.bin"))
    assert [str(file.relative_to(tmp_path)) for file in files] == [
        f"nvidia/{release}/{name}" for name in sorted(FILES)
    ]
    assert capsys.readouterr().out.split() == [
        str(tmp_path / "nvidia" / release / name) for name in FILES
    ]
    for file in files:
        assert sections(file.read_bytes())[".fwversion"] == f"{release}\0".encode()


def test_driver_release_without_data_has_no_firmware(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gpu", "firmware", "1.2.3", f"--output={tmp_path}"]) != 0

    assert "known releases" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
