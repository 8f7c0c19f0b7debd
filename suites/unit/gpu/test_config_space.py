"""Configuration space behaves as the PCI specification says."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from harness.gpu import Bar, PciIdentity
from harness.gpu.config_space import (
    BAR_0,
    BEFORE_HOPPER,
    COMMAND,
    COMMAND_MEMORY,
    EXPRESS,
    FROM_HOPPER,
    ConfigSpace,
)

_MIB = 1 << 20
_IDENTITY = PciIdentity(
    vendor=0x10DE,
    device=0x2330,
    subsystem_vendor=0x10DE,
    subsystem=0x16C1,
    class_code=0x030200,
    revision=0xA1,
)


def _space() -> ConfigSpace:
    return ConfigSpace(_IDENTITY, {0: Bar(mib=16), 1: Bar(mib=32), 3: Bar(mib=1)})


def _express_space() -> ConfigSpace:
    return ConfigSpace(
        _IDENTITY,
        {0: Bar(mib=16, bits=64), 2: Bar(mib=128 << 10, bits=64), 4: Bar(mib=32)},
        is_express=True,
    )


def test_ids_are_at_the_offsets_that_the_specification_defines() -> None:
    space = _space()

    assert space.read(0x00, 4) == 0x233010DE
    assert space.read(0x08, 4) == 0x030200A1
    assert space.read(0x0A, 2) == 0x0302
    assert space.read(0x0E, 1) == 0x00
    assert space.read(0x2C, 4) == 0x16C110DE


def test_pci_function_has_an_interrupt_pin_and_no_rom() -> None:
    """NVIDIA's driver ignores a function for which the guest has routed no interrupt."""
    for space in (_space(), _express_space()):
        space.write(0x30, 0xFFFFFFFF, 4)
        space.write(0x3C, 0xFFFF, 2)

        assert space.read(0x3C, 2) == 0x01FF
        assert space.read(0x30, 4) == 0


def test_conventional_pci_function_has_no_capabilities() -> None:
    for space in (_space(), ConfigSpace(_IDENTITY, {0: Bar(mib=16)}, has_msi=True)):
        assert (space.read(0x06, 2), space.read(0x34, 1), space.read(0x68, 4)) == (0, 0, 0)


def test_bar_reads_as_its_size_after_a_write_of_all_ones() -> None:
    sizes = {0x10: 16 * _MIB, 0x14: 32 * _MIB, 0x18: 0, 0x1C: _MIB, 0x28: 0}
    space = _space()

    for offset in sizes:
        space.write(offset, 0xFFFFFFFF, 4)

    assert {
        offset: (~(space.read(offset, 4) & 0xFFFFFFF0) + 1) & 0xFFFFFFFF for offset in sizes
    } == sizes


def test_bar_is_found_only_at_the_address_that_the_guest_wrote() -> None:
    space = _space()
    space.write(BAR_0, 0xE0000000, 4)
    space.write(COMMAND, 0xFFFF & ~COMMAND_MEMORY, 2)
    assert space.find_bar(0xE0000000, 4) is None

    space.write(COMMAND, COMMAND_MEMORY, 2)

    assert space.bar_address(0) == 0xE0000000
    assert space.find_bar(0xE0000A00, 4) == (0, 0xA00)
    assert space.find_bar(0xE0FFFFFC, 4) == (0, 0xFFFFFC)
    assert space.find_bar(0xE0FFFFFC, 8) is None
    assert space.find_bar(0xDFFFFFFF, 1) is None
    assert space.find_bar(0, 4) is None
    space.write(BAR_0 + 3, 0xD0, 1)
    assert space.bar_address(0) == 0xD0000000


def test_reset_clears_the_command_register_and_bar_addresses() -> None:
    space = _space()
    space.write(COMMAND, 0xFFFF, 2)
    space.write(BAR_0, 0xE0000000, 4)

    space.reset()

    assert (space.read(COMMAND, 2), space.read(BAR_0, 4)) == (0, 0)


def test_bar_with_an_invalid_index_or_size_or_width_is_refused() -> None:
    accepted = []
    for bars in (
        {6: Bar(mib=16)},
        {0: Bar(mib=24)},
        {0: Bar(mib=0)},
        {0: Bar(mib=4096)},
        {5: Bar(mib=16, bits=64)},
        {0: Bar(mib=16, bits=64), 1: Bar(mib=16)},
    ):
        with contextlib.suppress(ValueError):
            ConfigSpace(_IDENTITY, bars)
            accepted.append(bars)

    assert accepted == []


@given(
    writes=st.lists(
        st.tuples(
            st.integers(0, 300),
            st.integers(0, 0xFFFFFFFF),
            st.integers(1, 4),
        ),
        max_size=30,
    )
)
def test_read_only_bits_stay_the_same_after_every_write(
    writes: list[tuple[int, int, int]],
) -> None:
    space = _space()
    fresh = _space()
    writable = {*range(0x04, 0x06), 0x0C, 0x3C, *range(0x10, 0x18), *range(0x1C, 0x20)}

    for offset, value, size in writes:
        space.write(offset, value, size)

    for offset in range(300):
        if offset not in writable:
            assert space.read(offset, 1) == fresh.read(offset, 1)
    assert space.read(BAR_0, 4) % (16 * _MIB) == 0
    assert space.read(BAR_0 + 4, 4) % (32 * _MIB) == 0


def test_bytes_beyond_the_end_of_configuration_space_read_as_all_ones() -> None:
    space = _space()

    assert space.read(0x100, 4) == 0xFFFFFFFF
    assert space.read(0xFE, 4) == 0xFFFF0000


def test_64bit_bar_uses_two_registers() -> None:
    space = _express_space()
    for offset in (0x18, 0x1C):
        space.write(offset, 0xFFFFFFFF, 4)

    assert (space.read(0x18, 4), space.read(0x1C, 4)) == (0x0000000C, 0xFFFFFFE0)

    space.write(0x18, 0, 4)
    space.write(0x1C, 0x20, 4)
    space.write(COMMAND, COMMAND_MEMORY, 2)

    assert space.bar_address(2) == 0x20_0000_0000
    assert space.find_bar(0x3F_FFFF_FFFC, 4) == (2, (128 << 30) - 4)
    assert space.find_bar(0x40_0000_0000, 4) is None
    assert space.bar_address(3) is None


def test_pci_express_function_has_a_pci_express_capability() -> None:
    space = _express_space()

    assert space.size == 4096
    assert space.read(0x06, 2) & 1 << 4
    assert space.read(0x34, 1) == EXPRESS
    assert space.read(EXPRESS, 4) == 0x0002_00_10
    assert space.read(EXPRESS + 0x12, 2) == 16 << 4 | 4
    assert space.read(0x100, 4) == 0
    assert space.read(0xFFE, 4) == 0xFFFF0000


def test_read_only_link_registers_ignore_writes() -> None:
    space = _express_space()
    before = space.read(EXPRESS + 0x0C, 4)

    space.write(EXPRESS + 0x08, 0xFFFFFFFF, 4)
    space.write(EXPRESS + 0x0C, 0, 4)

    assert space.read(EXPRESS + 0x08, 4) == 0x7FFF
    assert space.read(EXPRESS + 0x0C, 4) == before


def test_power_and_msi_capabilities_are_at_the_offsets_that_the_driver_expects() -> None:
    """Read-only fields keep their values."""
    for places in (BEFORE_HOPPER, FROM_HOPPER):
        space = ConfigSpace(
            _IDENTITY, {0: Bar(mib=16)}, is_express=True, has_msi=True, places=places, generation=3
        )
        offsets = [places.power, places.power + 4, *range(places.msi, places.msi + 16, 4)]
        link = places.express + 0x2C
        for offset in (*offsets, link):
            space.write(offset, 0xFFFFFFFF, 4)

        assert [space.read(offset, 4) for offset in offsets] == [
            *(0x0003 << 16 | places.msi << 8 | 1, 3),
            *(0x81 << 16 | places.express << 8 | 5, 0xFFFFFFFC, 0xFFFFFFFF, 0xFFFF),
        ]
        # The register has one bit for each supported speed, from bit 1 on.
        assert space.read(link, 4) == 0b1110
        space.write(places.msi + 2, 0, 2)
        assert space.read(places.msi, 4) == 0x80 << 16 | places.express << 8 | 5


def _give_addresses(space: ConfigSpace) -> None:
    for offset, address in ((0x10, 0xFA000000), (0x14, 0xFC000000), (0x1C, 0xFE000000)):
        space.write(offset, address, 4)


def test_pci_function_is_placed_when_every_bar_has_an_address() -> None:
    space = _space()
    seen = []
    space.write(0x10, 0xFA000000, 4)
    seen.append(space.is_placed)
    _give_addresses(space)
    seen.append(space.is_placed)
    space.reset()
    seen.append(space.is_placed)

    assert seen == [False, True, False]


def test_bar_of_128_gib_is_placed_if_only_its_upper_half_has_an_address() -> None:
    """The lower half of a BAR of 128 GiB has no address bits."""
    space = _express_space()
    for offset in (0x10, 0x18, 0x20):
        space.write(offset, 0xE0000000, 4)
    for sized, restored in ((0xFFFFFFFF, 0), (0xFFFFFFFF, 0x80)):
        space.write(0x1C, sized, 4)
        assert not space.is_placed
        space.write(0x1C, restored, 4)

    assert space.is_placed


def test_64bit_bar_is_placed_at_an_address_with_all_bits_set_in_its_lower_half() -> None:
    """For example, a BAR of 16 MiB has such an address if it ends at a multiple of 4 GiB."""
    space = _express_space()
    for offset, value in ((0x18, 0xC), (0x1C, 0x80), (0x20, 0xE0000000)):
        space.write(offset, value, 4)

    space.write(0x10, 0xFFFFFFFF, 4)
    space.write(0x14, 0x81, 4)
    assert not space.is_placed
    space.write(0x10, 0xFF00000C, 4)

    assert space.is_placed


def test_partial_write_to_a_bar_ends_the_bar_sizing() -> None:
    space = _space()
    _give_addresses(space)

    space.write(0x1C, 0xFFFFFFFF, 4)
    assert not space.is_placed
    space.write(0x1E, 0xFE00, 2)

    assert space.is_placed


def test_reset_ends_the_sizing_of_a_bar() -> None:
    space = _express_space()
    space.write(0x14, 0xFFFFFFFF, 4)

    space.reset()
    for offset, value in ((0x10, 0xE0000000), (0x1C, 0x80), (0x20, 0xE2000000)):
        space.write(offset, value, 4)

    assert space.is_placed
