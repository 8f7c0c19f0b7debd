"""Tests on machines with a common fault; each test fails.

`test_summary.py` runs each test in a separate pytest process, and reads the summary of the run.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from harness import expect
from harness.api import Deadline, GuestFile, NodeRequest
from harness.cloudinit import UserData, render_seed
from harness.image import CloudImageKernel
from harness.lab.stand_ins import STAND_INS
from harness.provisioner import BOOT
from suites.e2e.guest_script import shell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.api import BootNode, CloneState, Image, LabMachine, SavedState
    from suites.e2e.conftest import StartNode

#: The longest wait for a machine that never becomes ready: longer than a sound machine takes under
#: TCG.
_HANGING_S = 20.0
_INITRAMFS_S = 120.0
_IN_GUEST_S = 60.0
#: Provisioning retries a failing step for this long; the steps before took 30 s on a busy host.
_BRIEF: Mapping[str, object] = {"retry_budget_s": 60}
#: Keeps apt's lock, as apt's own services do.
_HOLD_LOCK = """
import fcntl, time
lock = open("/var/lib/dpkg/lock-frontend", "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
open("/run/held", "w").close()
time.sleep(600)
"""
_SERVE_TLS = """
cd /run
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost \
  -keyout key.pem -out cert.pem 2>/dev/null
setsid openssl s_server -quiet -www -accept 127.0.0.1:8443 -key key.pem -cert cert.pem \
  </dev/null >/dev/null 2>&1 &
date --set=2020-01-01
curl --silent --show-error --retry 5 --retry-connrefused --cacert cert.pem https://localhost:8443
"""


#: Ext4 reserves some blocks; the free space that is left is less than any step needs.
_FILL_DISK = """
free=$(df --output=avail -B1 / | tail -n1)
fallocate -l $((free - (16 << 20))) /var/fill
cat /dev/zero >/var/rest || true
"""


_EAT_MEMORY = """
python3 -c 'eaten = []
while True: eaten.append(b"x" * (64 << 20))' || exit 9
"""


def in_guest(machine: LabMachine, script: str) -> str:
    return machine.guest.output_of(*shell(script.strip()), timeout_s=_IN_GUEST_S)


def smi_settings(script: str) -> GuestFile:
    """Return a file that the stand-in for nvidia-smi sources before it looks at the GPU."""
    return GuestFile(path=f"{STAND_INS}/nvidia-smi.env", content=f"{script}\n".encode())


def unit(name: str, text: str) -> str:
    """Return shell code that adds a unit which starts at each boot."""
    path = f"/etc/systemd/system/{name}"
    return f"printf '{text}' >{path}; systemctl add-wants multi-user.target {name}"


def request_of_boot(image: Image, *arguments: str) -> NodeRequest:
    """Return the request of a machine whose kernel gets these arguments and no others."""
    kernel = image.newest_kernel
    return NodeRequest(
        name="hanging",
        image=image,
        kernel=CloudImageKernel(
            version=kernel.version,
            vmlinuz=kernel.vmlinuz,
            initrd=kernel.initrd,
            command_line=(*arguments, "console=ttyS0", "mitigations=off"),
        ),
        command=None,
        # Such a node boots cold, since a node that hangs has no state to save.
        may_reboot=True,
    )


def test_boot_hangs(boot_node: BootNode, node_image: Image) -> None:
    """The first process waits for ever without output; neither agent nor sshd starts."""
    request = request_of_boot(node_image, "root=/dev/vda", "init=/bin/cat")
    node = boot_node(request, wait=False)

    node.machine.vm.agent.wait_until_ready(Deadline.after(_HANGING_S))


def test_root_is_not_found(boot_node: BootNode, node_image: Image) -> None:
    """The initramfs waits for ever in a shell on the console."""
    node = boot_node(request_of_boot(node_image, "root=/dev/vdz"), wait=False)
    # The initramfs looks for the device for half a minute.
    node.machine.vm.console.wait_for(
        "Dropping to a shell", Deadline.after(_INITRAMFS_S), what="the shell of the initramfs"
    )

    node.machine.vm.agent.wait_until_ready(Deadline.after(1.0))


def test_unit_before_sshd_never_starts(clone: CloneState, node_booted: SavedState) -> None:
    """Both sshd and cloud-init wait for the unit."""
    machine = clone(node_booted)
    in_guest(
        machine,
        unit(
            "storage.service",
            "[Unit]\\nBefore=ssh.service cloud-init.service\\n"
            "[Service]\\nType=oneshot\\nExecStart=sleep infinity\\n",
        ),
    )

    machine.start_cloud_init()
    machine.wait_until_cloud_init_finished(Deadline.after(_HANGING_S))


def test_kernel_panics(clone: CloneState, cloud_init_done: SavedState) -> None:
    in_guest(clone(cloud_init_done), "echo c >/proc/sysrq-trigger")


def test_disk_is_full(start_node: StartNode, node_image: Image) -> None:
    """Neither the module of the driver nor the outcome can be written."""
    node = start_node(
        "full",
        image=node_image,
        config=_BRIEF,
        before=[shell(_FILL_DISK)],
    )

    expect.provisioned(node.evidence())


def test_memory_is_used_up(start_validated: StartNode) -> None:
    """The kernel kills a process of a provisioning step."""
    node = start_validated("small", config=_BRIEF, files=[smi_settings(_EAT_MEMORY)])

    expect.provisioned(node.evidence())


def test_user_data_is_not_yaml(clone: CloneState, node_booted: SavedState) -> None:
    machine = clone(node_booted)
    user_data = UserData(hostname="node")
    seed = render_seed(user_data, instance_id="broken")

    machine.run_cloud_init(replace(seed, user_data="#cloud-config\nruncmd: [touch, /run/done\n"))

    in_guest(machine, "cat /run/done")


def test_gpu_falls_off_the_bus(start_validated: StartNode) -> None:
    """The GPU is lost between two steps; the second step queries the GPU."""
    asks = "touch /run/asked; until [ -e /run/lost ]; do sleep 0.1; done"
    node = start_validated("lost", command=None, config=_BRIEF, files=[smi_settings(asks)])

    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(node.provision, BOOT)
        node.machine.agent.wait_for_file("/run/asked", Deadline.after(_IN_GUEST_S))
        node.gpu().fall_off_bus()
        node.guest.output_of("touch", "/run/lost")
        run.result()

    expect.provisioned(node.evidence())


def test_dpkg_is_locked(clone: CloneState, cloud_init_done: SavedState) -> None:
    machine = clone(cloud_init_done)
    machine.guest.write_text("/run/hold", _HOLD_LOCK)
    in_guest(machine, "setsid python3 /run/hold >/dev/null 2>&1 </dev/null &")
    machine.agent.wait_for_file("/run/held", Deadline.after(_IN_GUEST_S))

    in_guest(machine, "apt-get install --yes curl")


def test_headers_are_missing(clone: CloneState, driver_baked: SavedState) -> None:
    machine = clone(driver_baked)
    in_guest(machine, "rm /lib/modules/*/build")

    in_guest(
        machine,
        "version=$(ls /var/lib/dkms/nvidia | grep -m1 '^[0-9]'); "
        'dkms build "nvidia/$version" -k "$(uname -r)" --force',
    )


def test_clock_is_set_back(clone: CloneState, cloud_init_done: SavedState) -> None:
    in_guest(clone(cloud_init_done), _SERVE_TLS)


def test_name_is_not_resolved(clone: CloneState, cloud_init_done: SavedState) -> None:
    machine = clone(cloud_init_done)
    # No server listens at this address, so each query is refused at once.
    in_guest(machine, "rm -f /etc/resolv.conf; echo nameserver 127.0.0.1 >/etc/resolv.conf")

    in_guest(machine, "curl --silent --show-error http://mcr.microsoft.com/v2/")
