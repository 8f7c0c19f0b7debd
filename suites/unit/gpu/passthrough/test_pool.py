"""Leases of a host's GPUs: drivers, queue, restoring, quarantine."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.gpu.catalogue import find_model
from harness.gpu.passthrough import GpuChoice, VerdictKind
from harness.gpu.passthrough import handover as handover_module
from harness.gpu.passthrough.assessment import Assessor
from harness.gpu.passthrough.binding import Binder, DeviceError
from harness.gpu.passthrough.device_users import VfioFile
from harness.gpu.passthrough.handover import NotNowError
from harness.gpu.passthrough.inventory import GpuKeys, Inventory
from harness.gpu.passthrough.pool import GpuPool
from harness.gpu.passthrough.records import DeviceRecords, Quarantine, RecordError
from harness.provisioning.wait import Deadline
from suites.unit.gpu.passthrough.fake_host import (
    L4,
    NVME_CLASS,
    ROOT_PORT_CLASS,
    FakeHost,
    FakeKernel,
)
from suites.unit.gpu.passthrough.leasing import (
    ANY,
    AUDIO,
    BEFORE,
    FIRST,
    GPU,
    SECOND,
    busy,
    drivers,
    lease,
    record,
    verdicts,
)
from suites.unit.gpu.socketside import open_descriptors

if TYPE_CHECKING:
    from pathlib import Path

    from harness.gpu.passthrough import HostDevices

pytestmark = pytest.mark.usefixtures("fake_time")

NVME = "0000:03:00.0"
OTHER = GpuChoice(address=SECOND)


@pytest.fixture
def other_pool(host: FakeHost, kernel: FakeKernel, folder: Path) -> GpuPool:
    """Return the pool of another process."""
    return GpuPool(folder, root=host.root, runner=kernel, process=2)


def reason(pool: GpuPool, address: str = GPU) -> str:
    return next(gpu for gpu in pool.survey() if gpu.address == address).verdict.reason


def test_lease_binds_all_pci_functions_in_the_iommu_groups_of_its_gpus_to_vfio_pci(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool
) -> None:
    """The GPUs are in the order of the requests. A GPU that had no driver gets no driver."""
    kernel.matching[SECOND] = "nvidia"

    with lease(pool, ANY, FIRST) as gpus:
        assert [each.addresses for each in gpus] == [(SECOND,), (GPU, AUDIO)]
        assert drivers(host) == dict.fromkeys((GPU, AUDIO, SECOND), "vfio-pci")

    assert drivers(host) == BEFORE
    assert {host.override_of(each) for each in (GPU, AUDIO, SECOND)} == {"(null)"}


def test_driver_and_driver_override_are_restored_after_the_lease(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool
) -> None:
    """The kernel itself would choose another driver."""
    host.bind(SECOND, "pci-stub")
    (host.device(SECOND) / "driver_override").write_text("pci-stub\n")
    kernel.matching[SECOND] = "nouveau"

    with lease(pool, OTHER):
        pass

    assert (host.driver_of(SECOND), host.override_of(SECOND)) == ("pci-stub", "pci-stub")


def test_gpu_that_was_on_vfio_before_the_lease_stays_on_vfio(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool
) -> None:
    host.bind(SECOND, "vfio-pci")

    before = open_descriptors()
    with lease(pool, OTHER):
        pass

    assert open_descriptors() == before
    assert host.driver_of(SECOND) == "vfio-pci"
    assert {path.rpartition("/")[2] for path, _ in kernel.writes} == {"reset"}


def test_all_pci_functions_of_a_card_are_reset_before_and_after_a_lease_and_on_demand(
    kernel: FakeKernel, pool: GpuPool
) -> None:
    def resets() -> list[str]:
        return [path.split("/")[1] for path, _ in kernel.writes if path.endswith("/reset")]

    with lease(pool, FIRST) as (gpu,):
        assert resets() == [GPU, AUDIO]
        gpu.reset()
        assert resets() == [GPU, AUDIO] * 2

    assert resets() == [GPU, AUDIO] * 3
    # The reset comes before the host's drivers are bound, so they find no state of the test.
    assert not kernel.writes[-1][0].endswith("/reset")


def test_lease_of_two_gpus_returns_the_first_gpu_if_the_second_cannot_be_taken(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool
) -> None:
    kernel.dies_at_reset.add(SECOND)

    with pytest.raises(HarnessError, match=f"{SECOND} does not answer"), lease(pool, FIRST, OTHER):
        pass

    assert (drivers(host)[GPU], drivers(host)[AUDIO]) == ("nvidia", "snd_hda_intel")
    assert verdicts(pool) == {GPU: VerdictKind.USABLE, SECOND: VerdictKind.REFUSED}
    # The GPU is reset when it is taken and when it is returned.
    assert [path for path, _ in kernel.writes].count(f"devices/{GPU}/reset") == 2


def test_healthy_gpu_of_a_lease_is_returned_even_if_another_gpu_of_the_lease_is_quarantined(
    host: FakeHost, pool: GpuPool
) -> None:
    with (
        pytest.raises(DeviceError, match=f"GPU {GPU} is quarantined") as caught,
        lease(pool, FIRST, OTHER),
    ):
        (host.device(GPU) / "config").write_bytes(b"\xff" * 64)

    assert f"GPU {SECOND}" not in str(caught.value)
    assert host.driver_of(SECOND) is None
    assert verdicts(pool) == {SECOND: VerdictKind.USABLE, GPU: VerdictKind.REFUSED}
    assert pool.leases() == []


def test_error_shows_each_gpu_that_could_not_be_returned(host: FakeHost, pool: GpuPool) -> None:
    held = lease(pool, FIRST, OTHER)
    held.__enter__()
    for each in (GPU, SECOND):
        (host.device(each) / "config").write_bytes(b"\xff" * 64)

    with pytest.raises(DeviceError) as caught:
        held.__exit__(None, None, None)

    for each in (GPU, SECOND):
        assert f"GPU {each} is quarantined" in str(caught.value)


def test_request_for_a_model_gets_a_gpu_of_that_model(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool, folder: Path
) -> None:
    """The inventory may state the model of a GPU; if not, the PCI ids decide."""
    host.add_function("0000:05:00.0", group=9, vendor=0x1002, device=L4)

    with lease(pool, GpuChoice(model=find_model("l4-24gb"))) as (gpu,):
        assert gpu.gpu.address == SECOND
    with pytest.raises(RequirementError, match="the requested GPUs: a GPU of model 't4-16gb'"):
        pool.require([GpuChoice(model=find_model("t4-16gb"))])

    h100 = find_model("h100-sxm5-80gb")
    inventory = Inventory(gpus={SECOND: GpuKeys(model=h100.name), GPU: GpuKeys(model="l4")})
    with_inventory = GpuPool(folder, inventory=inventory, root=host.root, runner=kernel)
    with lease(with_inventory, GpuChoice(model=h100)) as (gpu,):
        assert gpu.gpu.address == SECOND


def test_request_for_more_gpus_than_the_host_has_is_refused_at_once(pool: GpuPool) -> None:
    with (
        pytest.raises(
            RequirementError,
            match="3 GPUs are requested together, but this host can lease only 2 that fit",
        ),
        lease(pool, ANY, ANY, ANY),
    ):
        pass


def test_report_and_error_of_a_waiting_process_mention_the_holder_of_the_gpu(
    pool: GpuPool, other_pool: GpuPool
) -> None:
    reports: list[str] = []

    with (
        lease(pool, OTHER, holder="suite [row]"),
        pytest.raises(HarnessError) as caught,
        lease(other_pool, OTHER, holder="other suite", reports=reports),
    ):
        pass

    assert len(reports) == 1
    assert f"'other suite' waits for GPU {SECOND}: {SECOND} is held by 'suite [row]'" in reports[0]
    assert "(process 1, since 20" in reports[0]
    assert "held by 'suite [row]'" in str(caught.value)
    assert not isinstance(caught.value, RequirementError)


def test_waiting_for_a_gpu_ends_when_the_run_is_cancelled(
    pool: GpuPool, other_pool: GpuPool
) -> None:
    """The run leaves the queue, and the holder keeps the GPU."""
    reasons = iter([None, None, "The run ended."])

    with lease(pool, OTHER, holder="suite"):
        with (
            pytest.raises(HarnessError, match=r"^The run ended\.$"),
            other_pool.lease(
                [OTHER],
                holder="other suite",
                deadline=Deadline.after(30),
                cancelled=lambda: next(reasons),
            ),
        ):
            pass
        assert [each.who for each in pool.leases()] == ["suite"]


def test_survey_shows_the_holder_of_each_leased_gpu(
    host: FakeHost, pool: GpuPool, other_pool: GpuPool
) -> None:
    third = "0000:67:00.0"
    host.add_function(third, group=7)

    with lease(pool, OTHER, FIRST, holder="suite"):
        assert verdicts(other_pool) == {
            GPU: VerdictKind.BUSY,
            SECOND: VerdictKind.BUSY,
            third: VerdictKind.USABLE,
        }
        for each in (GPU, SECOND):
            assert "The GPU is held by 'suite' of user " in reason(other_pool, each)

    assert set(verdicts(pool).values()) == {VerdictKind.USABLE}


def test_gpu_that_did_not_answer_once_is_checked_again_and_leased(
    host: FakeHost, pool: GpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder of a lease may have reset the GPU while the host was read."""
    true_assess = Assessor.assess
    config = host.device(SECOND) / "config"
    content = config.read_bytes()
    config.write_bytes(b"\xff" * 64)

    def assess(self: Assessor) -> HostDevices:
        devices = true_assess(self)
        config.write_bytes(content)
        return devices

    monkeypatch.setattr(Assessor, "assess", assess)

    with lease(pool, OTHER) as (gpu,):
        assert gpu.gpu.address == SECOND


def test_lease_of_several_gpus_holds_no_gpu_while_it_waits(
    pool: GpuPool, other_pool: GpuPool
) -> None:
    taken: list[tuple[str, ...]] = []

    with (
        lease(pool, OTHER),
        pytest.raises(HarnessError, match="is held by"),
        other_pool.lease(
            [ANY, ANY],
            holder="other",
            deadline=Deadline.after(0.3),
            report=lambda _: taken.extend(each.taken for each in pool.leases()),
        ),
    ):
        pass

    assert taken == [(SECOND,), ()]


def test_address_of_a_pci_function_that_is_not_a_gpu_of_this_host_is_refused(
    host: FakeHost, pool: GpuPool
) -> None:
    host.add_function(NVME, group=9, class_code=NVME_CLASS)

    for address, message in (
        (NVME, f"{NVME} .10de:2330, class 010802. is not a GPU. This host's GPUs are {GPU}"),
        ("0000:99:00.0", "does not have the requested GPUs: GPU 0000:99:00.0. This host's GPUs"),
    ):
        with pytest.raises(RequirementError, match=message):
            pool.require([GpuChoice(address=address)])


def test_gpu_address_without_a_pci_segment_or_with_a_five_digit_segment_is_accepted(
    host: FakeHost, pool: GpuPool
) -> None:
    host.add_function("10001:67:00.0", group=9)

    pool.require([GpuChoice(address="66:00.0"), GpuChoice(address=" 10001:67:00.0")])
    with pytest.raises(BadInputError, match="'slot 3' is not a PCI address"):
        pool.require([GpuChoice(address="slot 3")])


def test_gpu_in_an_iommu_group_with_another_device_is_refused_and_another_gpu_is_leased(
    host: FakeHost, pool: GpuPool
) -> None:
    host.add_function(NVME, group=5, class_code=NVME_CLASS, driver="nvme")

    with pytest.raises(RequirementError, match=f"GPU {GPU} can't be leased.*group 5 with {NVME}"):
        pool.require([FIRST])
    with lease(pool) as (gpu,):
        assert gpu.gpu.address == SECOND
    assert host.driver_of(NVME) == "nvme"


def test_lease_that_waits_for_a_busy_gpu_reports_each_process_only_once(
    host: FakeHost, pool: GpuPool
) -> None:
    host.add_process(77, "first", "/dev/nvidia0")
    host.write(f"proc/driver/nvidia/gpus/{GPU}/information", "Device Minor: 0\n")
    reports: list[str] = []

    def report(text: str) -> None:
        reports.append(text)
        if len(reports) == 1:
            host.add_process(78, "second", "/dev/nvidia0")

    with (
        pytest.raises(
            HarnessError,
            match=f"last seen: {GPU}: '/dev/nvidia0' is open in process 77 .'first' .*'second' ",
        ),
        pool.lease([FIRST], holder="a test", deadline=Deadline.after(5), report=report),
    ):
        pass

    seen = [("'first'" in each, "'second'" in each) for each in reports]
    assert seen == [(True, False), (True, True)]
    with lease(pool) as (gpu,):
        assert gpu.gpu.address == SECOND
    assert drivers(host) == BEFORE


def test_waiting_lease_takes_a_hot_plugged_gpu(
    host: FakeHost, pool: GpuPool, other_pool: GpuPool
) -> None:
    host.remove(GPU)

    def plug(_: str) -> None:
        host.add_function("0000:67:00.0", group=7)

    with (
        lease(pool, OTHER),
        other_pool.lease([ANY], holder="x", deadline=Deadline.after(40), report=plug) as (gpu,),
    ):
        assert gpu.gpu.address == "0000:67:00.0"


def test_gpu_whose_vfio_file_is_open_in_another_process_stays_unchanged(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordinary user detects this only by opening the file of the group."""
    host.bind(SECOND, "vfio-pci")

    with busy(monkeypatch, 6):
        assert verdicts(pool)[SECOND] is VerdictKind.BUSY
        with pytest.raises(HarnessError, match="/dev/vfio/6' open"), lease(pool, OTHER):
            pass
    assert kernel.writes == []


def test_vfio_file_of_an_excluded_gpu_is_not_opened(
    host: FakeHost, kernel: FakeKernel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's machine may be about to open the file."""
    inventory = Inventory(gpus={SECOND: GpuKeys(exclude="mine")})
    host.bind(SECOND, "vfio-pci")

    with busy(monkeypatch, 6):
        pool = GpuPool(folder, inventory=inventory, root=host.root, runner=kernel)
        assert "open" not in reason(pool, SECOND)
    assert verdicts(pool)[SECOND] is VerdictKind.REFUSED


def test_lease_skips_a_gpu_whose_vfio_file_is_open(
    host: FakeHost, pool: GpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = "0000:67:00.0"
    host.add_function(third, group=7)
    host.bind(SECOND, "vfio-pci")

    with busy(monkeypatch, 6), lease(pool, ANY, ANY, within_s=1.5) as gpus:
        assert {each.gpu.address for each in gpus} == {GPU, third}


def test_lease_retries_a_gpu_whose_vfio_file_was_open(
    host: FakeHost, pool: GpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.bind(SECOND, "vfio-pci")
    states = [VfioFile.BUSY, VfioFile.BUSY]
    monkeypatch.setattr(
        "harness.gpu.passthrough.assessment.probe_vfio_file",
        lambda *_: states.pop() if states else VfioFile.FREE,
    )

    seen: list[tuple[str, ...]] = []

    def look(_: str) -> None:
        """Record the leased GPUs while the pool waits."""
        seen.extend(each.taken for each in pool.leases())

    with pool.lease([OTHER], holder="x", deadline=Deadline.after(20), report=look):
        assert states == []
    assert {*seen} == {()}


def test_lease_waits_while_the_holder_of_the_gpu_resets_it(
    host: FakeHost, pool: GpuPool, other_pool: GpuPool
) -> None:
    """A GPU does not answer during a reset, but the GPU is not broken."""
    with lease(pool, OTHER):
        config = host.device(SECOND) / "config"
        content = config.read_bytes()
        config.write_bytes(b"\xff" * 64)
        with pytest.raises(HarnessError, match="is held by") as caught, lease(other_pool, OTHER):
            pass
        config.write_bytes(content)

    assert not isinstance(caught.value, RequirementError)


def test_reset_of_a_gpu_is_refused_while_a_machine_uses_the_gpu(
    pool: GpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        lease(pool, OTHER) as (gpu,),
        busy(monkeypatch, 6),
        pytest.raises(HarnessError, match=f"GPU {SECOND} can't be reset while a machine has it"),
    ):
        gpu.reset()
    assert verdicts(pool)[SECOND] is VerdictKind.USABLE


def test_gpu_whose_vfio_file_stays_open_stays_on_vfio_until_the_file_is_closed(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover_module, "_CLOSED_S", 0.1)
    held = lease(pool, FIRST)
    held.__enter__()
    kernel.writes.clear()

    with (
        busy(monkeypatch, 5),
        pytest.raises(DeviceError, match=f"GPU {GPU} stays on vfio-pci: .* is open in a process"),
    ):
        held.__exit__(None, None, None)

    assert kernel.writes == []
    assert host.driver_of(GPU) == "vfio-pci"
    assert [each.is_restored for each in pool.restore_abandoned()] == [True]
    assert drivers(host) == BEFORE


def test_gpu_is_returned_even_if_its_machine_ends_a_moment_after_the_lease(
    host: FakeHost, pool: GpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = lease(pool, FIRST)
    held.__enter__()
    states = [VfioFile.BUSY, VfioFile.BUSY]
    monkeypatch.setattr(
        handover_module, "probe_vfio_file", lambda *_: states.pop() if states else VfioFile.FREE
    )

    held.__exit__(None, None, None)

    assert states == []
    assert drivers(host) == BEFORE


def test_gpu_is_not_quarantined_if_this_user_may_not_open_its_vfio_file(
    host: FakeHost, pool: GpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover_module, "_PERMISSIONS_S", 0.1)
    (host.root / "dev/vfio/5").mkdir()
    monkeypatch.setattr(host, "write", lambda *_: None)

    with pytest.raises(RequirementError, match=r"may not open '/dev/vfio/5'"), lease(pool, FIRST):
        pass

    assert drivers(host) == BEFORE
    assert verdicts(pool)[GPU] is VerdictKind.USABLE
    for each in (GPU, AUDIO):
        host.unbind(each)
        host.bind(each, "vfio-pci")
    assert verdicts(pool)[GPU] is VerdictKind.REFUSED


def test_drivers_of_a_gpu_are_restored_if_taking_the_gpu_is_interrupted(
    host: FakeHost, pool: GpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> VfioFile:
        raise KeyboardInterrupt

    monkeypatch.setattr(handover_module, "probe_vfio_file", interrupt)

    with pytest.raises(KeyboardInterrupt), lease(pool, FIRST):
        pass
    assert drivers(host) == BEFORE


def test_first_error_is_raised_if_taking_and_returning_a_gpu_both_fail(
    kernel: FakeKernel, pool: GpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(*_: object) -> VfioFile:
        kernel.broken["driver_override"] = "Input/output error"
        return VfioFile.FORBIDDEN

    monkeypatch.setattr(handover_module, "probe_vfio_file", probe)

    with pytest.raises(RequirementError, match=r"may not open '/dev/vfio/5'"), lease(pool, FIRST):
        pass


def test_gpu_is_not_quarantined_if_this_user_may_not_write_its_sysfs_files(
    host: FakeHost, pool: GpuPool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_access = os.access
    monkeypatch.setattr(
        os,
        "access",
        lambda path, mode, **at: (
            not ("unbind" in str(path) and mode & os.W_OK) and true_access(path, mode, **at)
        ),
    )

    with pytest.raises(RequirementError, match=r"may not write .*unbind'; run as root"):
        lease(pool, FIRST).__enter__()

    assert drivers(host) == BEFORE
    assert verdicts(pool)[GPU] is VerdictKind.USABLE
    assert [each.name for each in folder.glob("quarantine-*")] == []


def test_error_on_a_host_without_vfio_mentions_the_module_to_load(
    host: FakeHost, pool: GpuPool
) -> None:
    (host.root / "sys/bus/pci/drivers/vfio-pci/unbind").unlink()
    (host.root / "sys/bus/pci/drivers/vfio-pci").rmdir()

    with pytest.raises(RequirementError, match="run `modprobe vfio-pci`"), lease(pool, FIRST):
        pass

    assert drivers(host) == BEFORE


def test_keyboard_interrupt_in_a_test_is_raised_after_the_gpu_is_returned(
    host: FakeHost, pool: GpuPool
) -> None:
    with pytest.raises(KeyboardInterrupt), lease(pool, FIRST):
        raise KeyboardInterrupt
    assert drivers(host) == BEFORE


def test_quarantine_at_the_end_of_a_lease_is_reported_in_addition_to_the_error_in_the_test(
    kernel: FakeKernel, pool: GpuPool
) -> None:
    reports: list[str] = []

    held = lease(pool, FIRST, reports=reports)
    held.__enter__()
    kernel.dies_at_reset.add(GPU)

    assert not held.__exit__(ZeroDivisionError, ZeroDivisionError(), None)

    assert len(reports) == 1
    assert f"GPU {GPU} is quarantined: {GPU} does not answer" in reports[0]


def test_gpu_that_dies_during_its_reset_is_quarantined_and_another_gpu_is_leased(
    kernel: FakeKernel, pool: GpuPool
) -> None:
    kernel.dies_at_reset.add(AUDIO)

    with lease(pool, within_s=5) as (gpu,):
        assert gpu.gpu.address == SECOND

    assert verdicts(pool) == {GPU: VerdictKind.REFUSED, SECOND: VerdictKind.USABLE}
    assert "The GPU has been quarantined since 20" in reason(pool)
    assert f"{AUDIO} does not answer: its configuration space shows no ids" in reason(pool)
    assert f"run `harness gpu host release {GPU}`" in reason(pool)


def test_gpu_that_left_the_bus_is_quarantined(host: FakeHost, pool: GpuPool) -> None:
    with (
        pytest.raises(DeviceError, match=f"{GPU} is not on the PCI bus any more; .*rescan"),
        lease(pool, FIRST),
    ):
        host.remove(GPU)

    assert verdicts(pool) == {SECOND: VerdictKind.USABLE}


def test_reset_uses_the_next_method_if_one_method_fails(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool
) -> None:
    (host.device(SECOND) / "reset_method").write_text("flr bus pm acpi\n")
    kernel.failing_methods |= {"flr", "bus"}

    with lease(pool, OTHER):
        assert (host.device(SECOND) / "reset_method").read_text() == "flr bus pm acpi\n"

    methods = [text for path, text in kernel.writes if path == f"devices/{SECOND}/reset_method"]
    assert methods == ["bus", "pm", "flr bus pm acpi"] * 2


def test_gpu_is_quarantined_if_all_reset_methods_fail(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool
) -> None:
    with lease(pool, OTHER) as (gpu,):
        kernel.failing_methods |= {"flr", "bus"}
        with pytest.raises(DeviceError, match=r"can't be reset by flr, bus: Connection timed out"):
            gpu.reset()
        # The quarantine keeps the first reason, since later faults follow from the first fault.
        kernel.failing_methods.clear()
        kernel.dies_at_reset.add(SECOND)
        with pytest.raises(DeviceError, match="does not answer"):
            gpu.reset()

    assert "can't be reset by flr, bus" in reason(pool, SECOND)
    assert (host.device(SECOND) / "reset_method").read_text() == "flr bus\n"


def test_reset_methods_are_restored_if_the_kernel_refuses_one_method(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool
) -> None:
    with lease(pool, OTHER) as (gpu,):
        kernel.failing_methods, kernel.refused_methods = {"flr", "bus"}, {"pm"}
        (host.device(SECOND) / "reset_method").write_text("flr bus pm\n")
        with pytest.raises(DeviceError, match=r"'pm' can't be written .*: Invalid argument"):
            gpu.reset()

    assert (host.device(SECOND) / "reset_method").read_text() == "flr bus pm\n"


def test_gpu_is_quarantined_if_a_sysfs_write_hangs(kernel: FakeKernel, pool: GpuPool) -> None:
    kernel.hangs = f"{SECOND}/reset"

    with (
        pytest.raises(HarnessError, match="the kernel did not return within"),
        lease(pool, OTHER),
    ):
        pass


def test_gpu_is_quarantined_if_its_driver_does_not_bind_again(
    host: FakeHost, pool: GpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.gpu.passthrough.binding._LINK_S", 0.1)

    held = lease(pool, FIRST)
    held.__enter__()
    (host.root / "sys/bus/pci/drivers/nvidia/unbind").unlink()
    (host.root / "sys/bus/pci/drivers/nvidia").rmdir()

    with pytest.raises(DeviceError, match=f"{GPU} can't be bound to the driver 'nvidia'"):
        held.__exit__(None, None, None)

    assert "can't be bound to the driver 'nvidia'" in reason(pool)
    assert host.driver_of(AUDIO) == "snd_hda_intel"


def test_release_from_quarantine_binds_a_gpu_to_its_original_driver(
    host: FakeHost,
    kernel: FakeKernel,
    pool: GpuPool,
    other_pool: GpuPool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody else can take the GPU during the release."""
    true_write = Binder._write
    held: list[list[tuple[str, ...]]] = []

    def write(self: Binder, path: Path, text: str) -> None:
        held.append([each.taken for each in other_pool.leases()])
        true_write(self, path, text)

    kernel.dies_at_reset.add(GPU)
    with pytest.raises(HarnessError), lease(pool, FIRST):
        pass
    with pytest.raises(DeviceError, match="does not answer"):
        pool.release(GPU)
    assert "The GPU has been quarantined" in reason(pool)

    kernel.dies_at_reset.clear()
    (host.device(GPU) / "config").write_bytes(b"\xde\x10\x30\x23")
    monkeypatch.setattr(Binder, "_write", write)
    pool.release(GPU)

    assert drivers(host) == BEFORE
    assert held == [[(GPU,)]] * len(held)
    assert len(held) > 2
    assert verdicts(pool)[GPU] is VerdictKind.USABLE


def test_release_of_a_gpu_that_is_not_quarantined_is_refused(
    host: FakeHost, kernel: FakeKernel, folder: Path
) -> None:
    pool = GpuPool(folder, root=host.root, runner=kernel)
    with pytest.raises(
        RequirementError, match=f"{SECOND} is not quarantined; the quarantined GPUs are none"
    ):
        pool.release(SECOND)
    with lease(pool, OTHER), pytest.raises(RequirementError, match="is held by 'a test'"):
        pool.release(SECOND)


def test_gpu_without_recorded_drivers_is_released_from_quarantine_only_if_it_answers(
    host: FakeHost, pool: GpuPool
) -> None:
    smells = Quarantine(reason="It smells.\x1b[2J", since="now", user="ann")
    pool._records.save_quarantine(GPU, smells)
    config = host.device(GPU) / "config"
    content = config.read_bytes()
    config.write_bytes(b"\xff" * 64)

    with pytest.raises(DeviceError, match="does not answer"):
        pool.release(GPU)
    assert "It smells." in reason(pool)
    assert reason(pool).isprintable()

    config.write_bytes(content)
    pool.release(GPU)
    assert verdicts(pool)[GPU] is VerdictKind.USABLE


def test_quarantined_gpu_is_neither_restored_nor_taken(host: FakeHost, pool: GpuPool) -> None:
    """Binding a driver to a broken GPU may never return."""
    held = lease(pool, FIRST)
    held.__enter__()
    # A record can be read even if the kernel's message is long.
    why = Quarantine(reason=f"It smells. {'x' * 300_000}", since="now", user="ann")
    pool._records.save_quarantine(GPU, why)
    held.__exit__(None, None, None)

    assert pool.restore_abandoned() == []
    assert "It smells. x" in reason(pool)
    with pytest.raises(NotNowError, match="was quarantined after this process had chosen it"):
        pool._handover.take(GPU)

    assert host.driver_of(GPU) == "vfio-pci"
    pool.release(GPU)
    assert drivers(host) == BEFORE


def test_malformed_record_of_drivers_is_refused(folder: Path) -> None:
    for content in (
        "[]",
        '{"boot_id": "BOOT"}',
        '{"boot_id": "BOOT", "functions": {"0000:65:00.0": {"driver": "../x", "override": null}}}',
        '{"boot_id": "BOOT", "functions": {"0000:65:00.0": {"driver": 7, "override": null}}}',
        '{"boot_id": "BOOT", "functions": {"0000:65:00.0": "nvidia"}}',
    ):
        (folder / f"drivers-{GPU}.json").write_text(content)

        with pytest.raises(RecordError, match=f"drivers-{GPU}.json' can't be read"):
            DeviceRecords(folder, boot_id="BOOT").drivers(GPU)


def test_gpu_with_an_unreadable_driver_record_is_unknown_and_stays_unchanged(
    kernel: FakeKernel, pool: GpuPool, folder: Path
) -> None:
    file = folder / f"drivers-{GPU}.json"
    file.write_text("")
    before = open_descriptors()

    assert verdicts(pool) == {GPU: VerdictKind.UNKNOWN, SECOND: VerdictKind.USABLE}
    assert f"The record '{file}' can't be read" in reason(pool)
    assert open_descriptors() == before
    (done,) = pool.restore_abandoned()
    assert not done.is_restored
    assert file.name in done.sentence
    assert kernel.writes == []
    with lease(pool) as (gpu,):
        assert gpu.gpu.address == SECOND
    with pytest.raises(RequirementError, match=f"GPU {GPU} can't be leased"):
        pool.require([FIRST])


def test_lease_leaves_no_file_if_the_disk_is_full(
    host: FakeHost, pool: GpuPool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may be detected only at the fsync of the file."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)

    with (
        pytest.raises(HarnessError, match=r"can't be written \(No space left"),
        lease(pool, FIRST),
    ):
        pass

    assert list(folder.iterdir()) == []
    assert drivers(host) == BEFORE


def test_record_from_an_earlier_boot_is_not_used(
    host: FakeHost, pool: GpuPool, folder: Path
) -> None:
    """A folder on a disk survives a reboot, but the kernel binds the drivers anew."""
    record(folder, {GPU: "nouveau"}, boot="of before")
    host.add_driver("nouveau")

    assert pool.restore_abandoned() == []

    with lease(pool, FIRST):
        assert pool.restore_abandoned() == []
        assert host.driver_of(GPU) == "vfio-pci"
    assert drivers(host) == BEFORE
    assert list(folder.glob("drivers-*")) == []


def test_abandoned_gpu_with_a_dead_pci_function_is_quarantined(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool, folder: Path
) -> None:
    """Binding a driver to a dead function may never return."""
    record(folder, {each: BEFORE[each] for each in (GPU, AUDIO)})
    for each in (GPU, AUDIO):
        host.unbind(each)
        host.bind(each, "vfio-pci")
    (host.device(AUDIO) / "config").write_bytes(b"\xff" * 64)

    (done,) = pool.restore_abandoned()

    assert not done.is_restored
    assert f"GPU {GPU} is quarantined: {AUDIO} does not answer" in done.sentence
    assert kernel.writes == []
    assert verdicts(pool)[GPU] is VerdictKind.REFUSED
    assert pool.restore_abandoned() == []


def test_abandoned_gpu_stays_unchanged_if_one_of_its_pci_functions_may_be_open(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool, folder: Path
) -> None:
    """A run was killed while it returned the functions, and its machine still runs."""
    record(folder, {each: BEFORE[each] for each in (GPU, AUDIO)})
    host.unbind(AUDIO)
    host.bind(AUDIO, "vfio-pci")

    for state in (VfioFile.BUSY, VfioFile.FORBIDDEN):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(handover_module, "probe_vfio_file", lambda *_, state=state: state)
            (done,) = pool.restore_abandoned()
            with pytest.raises(HarnessError, match="'/dev/vfio/5'"), lease(pool, FIRST):
                pass
        assert not done.is_restored
        assert "'/dev/vfio/5'" in done.sentence
        assert kernel.writes == []

    with lease(pool, FIRST):
        pass
    assert drivers(host) == BEFORE


def test_driver_override_is_cleared_if_the_run_was_killed_before_it_unbound_the_driver(
    host: FakeHost, pool: GpuPool, folder: Path
) -> None:
    record(folder, {each: BEFORE[each] for each in (GPU, AUDIO)})
    (host.device(GPU) / "driver_override").write_text("vfio-pci\n")

    (done,) = pool.restore_abandoned()

    assert done.is_restored
    assert drivers(host) == BEFORE
    assert [host.override_of(each) for each in (GPU, AUDIO)] == ["(null)", "(null)"]


BRIDGE = "0000:00:03.0"
NO_GROUP, OTHER_WITHOUT_GROUP = "0000:70:00.0", "0000:71:00.0"


def test_driver_record_with_pci_functions_that_no_lease_would_take_is_not_used(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool, folder: Path
) -> None:
    """The user's own record may list a foreign group, a bridge, or functions without a GPU."""
    host.add_function(NVME, group=9, class_code=NVME_CLASS)
    host.add_function(BRIDGE, group=5, class_code=ROOT_PORT_CLASS)
    for each in (NO_GROUP, OTHER_WITHOUT_GROUP):
        host.add_function(each, group=None)

    for named in (
        *((GPU, SECOND), (GPU, BRIDGE), (AUDIO,), (NVME,)),
        (NO_GROUP, OTHER_WITHOUT_GROUP),
    ):
        gpu = GPU if AUDIO in named else named[0]
        file = record(folder, dict.fromkeys(named), gpu=gpu, override="x")

        (done,) = pool.restore_abandoned()

        assert not done.is_restored, named
        assert "is not used" in done.sentence
        assert kernel.writes == []
        file.unlink()


def test_lease_and_record_files_can_be_read_by_the_group(pool: GpuPool, folder: Path) -> None:
    old = os.umask(0o077)
    try:
        with lease(pool, OTHER):
            modes = {each.name: each.stat().st_mode & 0o777 for each in folder.iterdir()}
    finally:
        os.umask(old)
    assert len(modes) == 2
    assert set(modes.values()) == {0o640}
    assert list(folder.iterdir()) == []


def test_survey_does_not_create_the_lease_folder(host: FakeHost, tmp_path: Path) -> None:
    pool = GpuPool(tmp_path / "absent", root=host.root)

    assert verdicts(pool) == {GPU: VerdictKind.USABLE, SECOND: VerdictKind.USABLE}
    assert pool.leases() == []
    assert pool.restore_abandoned() == []
    assert not (tmp_path / "absent").exists()


def test_lease_whose_file_was_removed_raises_an_error(
    pool: GpuPool, other_pool: GpuPool, folder: Path
) -> None:
    def remove(_: str) -> None:
        for file in folder.glob("0*"):
            file.unlink()

    with (
        lease(pool, OTHER),
        pytest.raises(HarnessError, match="by which this process waits for a GPU, was removed"),
        other_pool.lease([OTHER], holder="other", deadline=Deadline.after(5), report=remove),
    ):
        pass
