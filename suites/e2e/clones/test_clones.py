"""A clone continues from its template's state, and shares nothing else with its siblings."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING

from harness.machine.checkpoint.manifest import CHECKPOINT_FORMAT

if TYPE_CHECKING:
    from harness.fixtures.saved_states import CloneState
    from harness.gpu import GpuModel
    from harness.lab import Lab
    from harness.lab.saved_states import SavedState

MARK = "/run/told-to-one-clone"


def test_clone_runs_without_a_boot(clone: CloneState, cloud_init_done: SavedState) -> None:
    """The template's work is already done in the clone, and the kernel has not booted again."""
    first, second = clone(cloud_init_done), clone(cloud_init_done)

    boots = {
        machine.guest.read_text("/proc/sys/kernel/random/boot_id") for machine in (first, second)
    }
    result = first.guest.output_of("cloud-init", "status")

    assert len(boots) == 1
    assert result == "status: done"


def test_clones_have_random_numbers_of_their_own(
    clone: CloneState, cloud_init_done: SavedState
) -> None:
    """Without new entropy, two machines with the same memory would generate the same keys."""
    read = ("sh", "-c", "head -c 1000 /dev/urandom | sha256sum")

    drawn = {clone(cloud_init_done).guest.output_of(*read) for _ in range(3)}

    assert len(drawn) == 3


def test_clock_is_right_to_the_second(clone: CloneState, cloud_init_done: SavedState) -> None:
    """The template's clock stopped when the template was saved; a clone's clock shows the present time."""
    machine = clone(cloud_init_done)

    before = dt.datetime.now(tz=dt.timezone.utc).timestamp()
    guest_time = float(machine.guest.output_of("date", "+%s.%N"))
    after = dt.datetime.now(tz=dt.timezone.utc).timestamp()

    assert before - 1 <= guest_time <= after + 1


def test_clock_runs_as_fast_as_the_host_clock(
    clone: CloneState, cloud_init_done: SavedState
) -> None:
    """While the template ran under emulation, Linux may have calibrated its clock on a busy host."""
    guest = clone(cloud_init_done).guest
    read = ("cut", "-d ", "-f1", "/proc/uptime")

    started = time.monotonic()
    first = float(guest.output_of(*read))
    began = time.monotonic()
    guest.output_of("sleep", "4")
    ended = time.monotonic()
    last = float(guest.output_of(*read))
    stopped = time.monotonic()

    assert ended - began <= (last - first) * 1.05
    assert last - first <= (stopped - started) * 1.05


def test_changes_in_a_clone_do_not_reach_the_template(
    clone: CloneState, cloud_init_done: SavedState
) -> None:
    """The clone changes its memory and its disk."""
    first = clone(cloud_init_done)
    first.guest.write_text(MARK, "memory")
    first.guest.write_text("/srv/told-to-one-clone", "disk")
    first.guest.output_of("sync")

    second = clone(cloud_init_done)

    assert second.guest.read_text(MARK) is None
    assert second.guest.read_text("/srv/told-to-one-clone") is None


def test_clone_gets_the_requested_hostname(clone: CloneState, cloud_init_done: SavedState) -> None:
    machine = clone(cloud_init_done, hostname="node-7")

    assert machine.guest.output_of("uname", "-n") == "node-7"
    assert machine.guest.read_text("/etc/hostname") == "node-7\n"


def test_network_has_the_configuration_given_to_cloud_init(
    clone: CloneState, cloud_init_done: SavedState
) -> None:
    """The network starts after cloud-init has written the network's configuration, as at a first boot."""
    machine = clone(cloud_init_done)

    assert "10.0.2.15/24" in machine.guest.output_of("ip", "-4", "address", "show", "eth0")


def test_gpu_is_plugged_into_a_clone(
    clone: CloneState, cloud_init_done: SavedState, h100: GpuModel
) -> None:
    machine = clone(cloud_init_done, gpus=[h100])

    machine.wait_for_gpu(h100)

    assert "[10de:2330]" in machine.guest.output_of("lspci", "-nn")


def test_template_is_untouched_by_its_clones(
    lab: Lab, clone: CloneState, cloud_init_done: SavedState
) -> None:
    """All bytes of memory, state and disk are read again after clones have used them."""
    machine = clone(cloud_init_done)
    machine.guest.output_of("sh", "-c", "head -c 64M /dev/zero >/run/much; sync")

    folder = lab.ensure_checkpoint(cloud_init_done).folder
    CHECKPOINT_FORMAT.check_digests(folder, CHECKPOINT_FORMAT.read(folder))


def test_guest_of_a_clone_may_reset_its_network_card(
    clone: CloneState, cloud_init_done: SavedState
) -> None:
    """QEMU once crashed at this reset, which a reboot or a reload of the card's driver causes."""
    machine = clone(cloud_init_done)
    again = (
        "cd /sys/bus/virtio/drivers/virtio_net && for card in virtio[0-9]*; do "
        'echo "$card" >unbind && echo "$card" >bind; done'
    )

    machine.guest.output_of("sh", "-c", again)

    assert machine.guest.run("test", "-d", "/sys/class/net/eth0").ok
