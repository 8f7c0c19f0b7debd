"""Memory BARs of a PCI function, from its file `resource`."""

from __future__ import annotations

import pytest

from harness.errors import HarnessError
from harness.gpu import Bar
from harness.gpu.passthrough.bars import MemoryBar, parse_resource

#: The file of an H100, shortened: the first six lines are BARs; later lines are the ROM, SR-IOV
#: BARs and bridge windows.
H100 = """\
0x0000000042000000 0x0000000042ffffff 0x0000000000040200
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000200000000000 0x0000201fffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000202000000000 0x0000202001ffffff 0x000000000014220c
0x000000000000e000 0x000000000000e07f 0x0000000000040101
0x00000000fe000000 0x00000000fe07ffff 0x0000000000046200
"""


def test_bars_of_a_gpu_are_read() -> None:
    """The I/O port BAR and the ROM are left out."""
    assert parse_resource(H100) == {
        0: MemoryBar(size=16 << 20, bits=32),
        2: MemoryBar(size=128 << 30, bits=64),
        4: MemoryBar(size=32 << 20, bits=64),
    }


def test_only_the_first_six_lines_of_a_resource_file_are_bars() -> None:
    lines = [f"{index + 1 << 24:#x} {(index + 2 << 24) - 1:#x} 0x40200" for index in range(7)]

    assert list(parse_resource("\n".join(lines))) == [0, 1, 2, 3, 4, 5]


def test_resource_file_without_bars_is_parsed_as_an_empty_dictionary() -> None:
    assert parse_resource("") == {}
    assert parse_resource("0x0000000000000000 0x0000000000000000 0x0000000000040200\n" * 6) == {}


def test_error_for_malformed_resource_text_mentions_the_line() -> None:
    for line in ("0x1 0x2", "a b z"):
        with pytest.raises(HarnessError, match=r"line 2 of a PCI function's 'resource'"):
            parse_resource(f"0x0 0x0 0x0\n{line}\n")


def test_bar_below_a_mebibyte_is_rounded_up_to_a_mebibyte() -> None:
    mib = {16 << 10: 1, 1 << 20: 1, 16 << 20: 16, 128 << 30: 128 << 10}

    assert {size: MemoryBar(size=size, bits=64).to_bar() for size in mib} == {
        size: Bar(mib=each, bits=64) for size, each in mib.items()
    }
