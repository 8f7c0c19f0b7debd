"""The driver of an emulated GPU finds the state that a test's script sets."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from harness.gpu import PMC_BOOT_0
from harness.gpu.emulated import EmulatedGpu
from harness.gpu.mailbox import (
    HEALTH,
    INFOROM_CORRUPTED,
    MAGIC,
    MAGIC_VALUE,
    MIG,
    MIG_ABLE,
    MIG_ENABLED,
    MIG_PENDING,
    XID,
    MigMode,
)
from harness.gpu.script import GpuScript
from harness.gpu.trace import IncidentKind
from suites.unit.gpu.models import a_gpu, a_model


def _read(gpu: EmulatedGpu, offset: int) -> int:
    return gpu.bar_read(0, offset, 4)


def test_gpu_with_an_empty_script_is_healthy() -> None:
    gpu = a_gpu()
    GpuScript().apply(gpu)

    assert [_read(gpu, offset) for offset in (MAGIC, XID, HEALTH, MIG)] == [
        MAGIC_VALUE,
        0,
        0,
        MIG_ABLE,
    ]
    assert gpu.trace.incidents == ()


def test_dead_gpu_is_found_on_the_bus_but_its_bars_read_as_all_ones() -> None:
    gpu = a_gpu()
    GpuScript(is_dead=True).apply(gpu)

    gpu.bar_write(0, 0x100, 1, 4)
    gpu.config_write(0x3C, 7, 1)

    assert (gpu.config_read(0, 4), gpu.config_read(0x3C, 1)) == (0x233010DE, 7)
    assert _read(gpu, PMC_BOOT_0) == 0xFFFFFFFF
    assert gpu.trace.incidents_of(IncidentKind.DIED)


def test_scripted_register_reads_as_its_scripted_value() -> None:
    gpu = a_gpu()
    GpuScript(answers={PMC_BOOT_0: 0x140000A1}).apply(gpu)

    assert _read(gpu, PMC_BOOT_0) == 0x140000A1


def test_driver_reads_queued_xids_one_by_one_in_order() -> None:
    gpu = a_gpu()
    GpuScript(xids=(48, 63)).apply(gpu)

    seen = []
    while number := _read(gpu, XID):
        seen.append(number)
        gpu.bar_write(0, XID, 0, 4)

    assert seen == [48, 63]
    assert [one.words for one in gpu.trace.incidents_of(IncidentKind.XID_RAISED)] == ["48", "63"]


def test_unread_xid_stays_queued() -> None:
    """QEMU resets a device when it is plugged in; the reset keeps scripted values."""
    gpu = a_gpu()
    gpu.raise_xid(79)
    gpu.bar_write(0, XID, 5, 4)
    gpu.reset()

    assert _read(gpu, XID) == 79


def test_xid_that_is_zero_or_exceeds_16_bits_is_refused() -> None:
    gpu, accepted = a_gpu(), []
    for number in (-1, 0, 1, 0xFFFF, 0x10000):
        with contextlib.suppress(ValueError):
            gpu.raise_xid(number)
            accepted.append(number)

    assert accepted == [1, 0xFFFF]


def test_queue_of_unread_xids_is_bounded() -> None:
    gpu = a_gpu()
    for number in range(1, 1000):
        gpu.raise_xid(number)

    assert _read(gpu, XID) == 999 - 63


def test_corrupted_inforom_is_reported() -> None:
    gpu = a_gpu()
    GpuScript(is_inforom_corrupted=True).apply(gpu)

    assert _read(gpu, HEALTH) == INFOROM_CORRUPTED


def test_mig_mode_changes_at_once_if_no_reset_is_needed() -> None:
    gpu = a_gpu()

    gpu.bar_write(0, MIG, MIG_PENDING, 4)
    gpu.bar_write(0, MIG + 1, 0, 1)

    assert _read(gpu, MIG) == MIG_ABLE | MIG_ENABLED | MIG_PENDING
    assert gpu.mig_mode == MigMode(is_enabled=True, is_pending=True)


def test_mig_mode_stays_disabled_on_a_gpu_without_mig() -> None:
    model = replace(a_model(), has_mig=False)
    gpu = EmulatedGpu(model, bars=model.bars.mpqemu)

    gpu.bar_write(0, MIG, MIG_PENDING, 4)
    gpu.reset()

    assert gpu.mig_mode == MigMode(is_enabled=False, is_pending=False)


def test_pending_mig_mode_takes_effect_at_the_next_reset() -> None:
    gpu = a_gpu()
    GpuScript(mig_needs_reset=True).apply(gpu)

    gpu.bar_write(0, MIG, MIG_PENDING, 4)
    assert gpu.mig_mode == MigMode(is_enabled=False, is_pending=True)

    gpu.reset()
    assert gpu.mig_mode == MigMode(is_enabled=True, is_pending=True)
    assert _read(gpu, MIG) == MIG_ABLE | MIG_ENABLED | MIG_PENDING

    gpu.bar_write(0, MIG, MIG_ABLE | MIG_ENABLED, 4)
    assert gpu.mig_mode == MigMode(is_enabled=True, is_pending=False)
    gpu.reset()
    assert gpu.mig_mode == MigMode(is_enabled=False, is_pending=False)
