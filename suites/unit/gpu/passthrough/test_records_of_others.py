"""Records that another user wrote, replaced or removed, and the rules for writes to sysfs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from harness import shared_folder
from harness.errors import HarnessError
from harness.gpu.passthrough import BoundDriver, VerdictKind
from harness.gpu.passthrough.binding import Binder
from harness.gpu.passthrough.records import RecordedDrivers, RecordError, Writer
from suites.unit.gpu.passthrough.leasing import (
    AUDIO,
    BEFORE,
    FIRST,
    GPU,
    drivers,
    lease,
    record,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.gpu.passthrough.pool import GpuPool
    from suites.unit.gpu.passthrough.fake_host import FakeHost, FakeKernel

_OTHER_USER = 65534
_OTHER_GROUP = 65533
_OTHER_NAME = shared_folder.user_name(_OTHER_USER)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "leases"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, 0, _OTHER_GROUP)
    folder.chmod(0o2770)
    return folder


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return a function that makes another user the owner of a file, or makes all files untrusted."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, _OTHER_USER, _OTHER_GROUP)
        else:
            monkeypatch.setattr(shared_folder.SharedFile, "is_trusted", False)

    return give


def left_by_a_killed_run(host: FakeHost, folder: Path) -> Path:
    """Return the record of a GPU that is on vfio-pci without a lease."""
    for address in (GPU, AUDIO):
        host.unbind(address)
        host.bind(address, "vfio-pci")
        (host.device(address) / "driver_override").write_text("vfio-pci\n")
    file = record(folder, {address: BEFORE[address] for address in (GPU, AUDIO)})
    file.chmod(0o640)
    return file


def let_the_group_bind(host: FakeHost, *addresses: str) -> None:
    bus = host.root / "sys/bus/pci"
    for path in (
        *(host.device(each) / "driver_override" for each in addresses),
        bus / "drivers_probe",
        bus / "drivers/vfio-pci/unbind",
    ):
        if os.geteuid() == 0:
            os.chown(path, 0, _OTHER_GROUP)
        path.chmod(0o664)


def test_gpu_is_restored_from_a_correct_record_that_another_user_wrote(
    host: FakeHost, pool: GpuPool, folder: Path, give_away: Callable[[Path], None]
) -> None:
    file = left_by_a_killed_run(host, folder)
    content = file.read_bytes()
    give_away(file)
    let_the_group_bind(host, GPU, AUDIO)

    # The second record lists functions that are on their earlier drivers already.
    for _ in range(2):
        (done,) = pool.restore_abandoned()

        assert done.is_restored, done.sentence
        assert drivers(host) == BEFORE
        assert host.override_of(AUDIO) == "(null)"
        assert not file.exists()
        file.write_bytes(content)
        give_away(file)
        (host.device(AUDIO) / "driver_override").write_text("vfio-pci\n")


def test_record_of_a_gpu_that_was_on_vfio_before_the_lease_is_removed(
    host: FakeHost, pool: GpuPool, folder: Path, give_away: Callable[[Path], None]
) -> None:
    """The GPU stays on vfio-pci, so only the other user's record has to be removed."""
    left_by_a_killed_run(host, folder)
    functions = dict.fromkeys((GPU, AUDIO), "vfio-pci")
    give_away(record(folder, functions, override="vfio-pci"))

    (done,) = pool.restore_abandoned()

    assert done.is_restored, done.sentence
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can do more than the record's writer")
def test_record_is_used_only_if_its_owner_may_write_every_sysfs_file(
    host: FakeHost,
    kernel: FakeKernel,
    pool: GpuPool,
    folder: Path,
    give_away: Callable[[Path], None],
) -> None:
    file = left_by_a_killed_run(host, folder)
    give_away(file)
    let_the_group_bind(host, GPU)

    (done,) = pool.restore_abandoned()

    assert not done.is_restored
    assert f"of user {_OTHER_NAME} is not used (that user may not write" in done.sentence
    assert AUDIO in done.sentence
    # As in the kernel, only the first class that matches decides: owner, else group, else others.
    override = host.device(GPU) / "driver_override"
    let_the_group_bind(host, GPU, AUDIO)
    for owner, mode in ((_OTHER_USER, 0o464), (0, 0o646)):
        os.chown(override, owner, _OTHER_GROUP)
        override.chmod(mode)
        (done,) = pool.restore_abandoned()
        assert f"/{GPU}/driver_override'" in done.sentence
    # The record's owner must have write access to the other files too.
    bus = host.root / "sys/bus/pci"
    for path in (bus / "drivers_probe", bus / "drivers/vfio-pci/unbind"):
        let_the_group_bind(host, GPU, AUDIO)
        os.chown(path, 0, 0)
        (done,) = pool.restore_abandoned()
        assert f"{path.name}'" in done.sentence
    # Nothing is written even if the owner may write all files of the first function.
    let_the_group_bind(host, GPU, AUDIO)
    host.unbind(GPU)
    host.bind(GPU, str(BEFORE[GPU]))
    override.chmod(0o664)
    os.chown(host.device(AUDIO) / "driver_override", 0, 0)
    (done,) = pool.restore_abandoned()
    assert f"/{AUDIO}/driver_override'" in done.sentence
    assert kernel.writes == []
    assert file.exists()


def test_lease_of_a_gpu_with_a_forged_record_fails_with_the_reason(
    host: FakeHost, pool: GpuPool, folder: Path, give_away: Callable[[Path], None]
) -> None:
    file = record(folder, {GPU: None})
    give_away(file)

    gpu, _ = pool.survey()

    assert gpu.verdict.kind is VerdictKind.UNKNOWN
    assert f"{file}' of user" in gpu.verdict.reason
    with (
        pytest.raises(HarnessError, match="is not bound to vfio-pci, so no run has leased"),
        lease(pool, FIRST),
    ):
        pass
    assert drivers(host) == BEFORE


def test_gpu_gets_its_driver_back_even_if_its_record_was_removed_or_changed(
    host: FakeHost, pool: GpuPool, folder: Path
) -> None:
    host.add_driver("nouveau")
    file = folder / f"drivers-{GPU}.json"
    with lease(pool, FIRST):
        file.unlink()
    assert drivers(host) == BEFORE

    with lease(pool, FIRST):
        assert host.driver_of(GPU) == host.driver_of(AUDIO) == "vfio-pci"
        text = file.read_text()
        for address in (GPU, AUDIO):
            text = text.replace(str(BEFORE[address]), "nouveau")
        file.write_text(text)

    assert drivers(host) == BEFORE


def test_fifo_that_replaced_the_record_is_reported_after_the_gpu_is_returned(
    host: FakeHost, pool: GpuPool, folder: Path
) -> None:
    file = folder / f"drivers-{GPU}.json"

    def run() -> None:
        with lease(pool, FIRST):
            file.unlink()
            os.mkfifo(file)

    with pytest.raises(HarnessError, match=f"'{file}' of user .* is a FIFO"):
        run()

    assert drivers(host) == BEFORE


def test_leased_gpu_is_returned_despite_a_quarantine_by_another_user(
    pool: GpuPool, folder: Path, give_away: Callable[[Path], None]
) -> None:
    """Only the holder of the lease can detect that the GPU is broken."""
    quarantine = folder / f"quarantine-{GPU}.json"
    for content, kind in (
        ("{", VerdictKind.UNKNOWN),
        ('{"reason": "no", "since": "now", "user": "root"}', VerdictKind.REFUSED),
    ):
        with lease(pool, FIRST):
            quarantine.write_text(content)
            give_away(quarantine)

        gpu, _ = pool.survey()
        assert gpu.function.driver == BEFORE[GPU]
        assert gpu.verdict.kind is kind
        quarantine.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_verdict_mentions_the_owner_of_the_quarantine_file(
    pool: GpuPool, folder: Path, give_away: Callable[[Path], None]
) -> None:
    quarantine = folder / f"quarantine-{GPU}.json"
    quarantine.write_text(r'{"reason": "It\u001b smells.", "since": "today", "user": "root"}')
    give_away(quarantine)

    gpu, _ = pool.survey()

    assert f"quarantined since today by user {_OTHER_NAME}: It\\x1b smells." in gpu.verdict.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_verdict_mentions_the_owner_of_the_lease_file(
    pool: GpuPool, folder: Path, give_away: Callable[[Path], None]
) -> None:
    with lease(pool, FIRST):
        (file,) = folder.glob("0*")
        file.write_text(file.read_text().replace('"user": "root"', '"user": "alice"'))
        give_away(file)

        gpu, _ = pool.survey()
        assert f"of user {_OTHER_NAME} (process" in gpu.verdict.reason
        os.chown(file, 0, 0)


def test_lease_fails_without_writes_if_the_driver_override_has_an_invalid_name(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool
) -> None:
    (host.device(GPU) / "driver_override").write_text("two words\n")

    with (
        pytest.raises(RecordError, match=r"can't be recorded \(.* is 'two words', but"),
        lease(pool, FIRST),
    ):
        pass

    assert kernel.writes == []
    assert drivers(host) == BEFORE


OURS = Writer(user=os.geteuid(), group=os.getegid(), name="us", is_trusted=True)


def test_nothing_is_written_for_an_invalid_address(
    host: FakeHost, kernel: FakeKernel, tmp_path: Path
) -> None:
    binder = Binder(host.root, kernel)
    for address in ("../../../etc", "0000:65:00.0/..", "0000:65:00.0\n"):
        bound = {address: BoundDriver(driver=None, override=None)}
        recorded = RecordedDrivers(
            address=address, path=tmp_path / "record", functions=bound, writer=OURS
        )
        with pytest.raises(HarnessError, match="is not on the PCI bus"):
            binder.bind_to_vfio(address)
        with pytest.raises(HarnessError, match="is not on the PCI bus"):
            binder.reset(address)
        with pytest.raises(HarnessError, match="is not on the PCI bus"):
            binder.restore(recorded)
        with pytest.raises(HarnessError, match="is not a PCI address, so nothing is written"):
            binder._write_override(address, "nvidia")
    assert kernel.writes == []


def test_invalid_text_for_a_sysfs_file_is_refused(host: FakeHost, kernel: FakeKernel) -> None:
    for name, text in (
        ("driver_override", "nvidia\nalice ALL=(ALL) NOPASSWD: ALL\n"),
        ("driver_override", "../nvidia\n"),
        ("unbind", "../x"),
        ("drivers_probe", f"{GPU} {AUDIO}"),
        ("reset", "2"),
        ("reset_method", "flr; reboot"),
        ("remove", "1"),
    ):
        with pytest.raises(HarnessError, match="is not written into"):
            Binder(host.root, kernel)._try_write(host.root / "sys/bus/pci" / name, text)

    assert kernel.writes == []


def test_sysfs_write_through_a_symbolic_link_out_of_sysfs_is_refused(
    host: FakeHost, kernel: FakeKernel, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.touch()
    override = host.device(GPU) / "driver_override"
    override.unlink()
    override.symlink_to(victim)

    with pytest.raises(HarnessError, match="is not written into"):
        Binder(host.root, kernel)._write_override(GPU, "nvidia")

    assert kernel.writes == []
