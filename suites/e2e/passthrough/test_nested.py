"""A machine on the host gets a GPU by vfio-pci, and Linux in the machine reads the GPU's registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.gpu.passthrough import VFIO_DRIVER
from suites.e2e.passthrough.conftest import DRIVER
from suites.e2e.passthrough.holders import Holder, driver_of, gpu_addresses

if TYPE_CHECKING:
    from harness.gpu import GpuModel
    from suites.e2e.passthrough.conftest import StartHost

_BOOT_S = 300.0
#: The init script of a minimal Linux: the host's own kernel, and an initramfs with only busybox.
_INIT = r"""#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for function in /sys/bus/pci/devices/*; do
    [ "$(cat $function/vendor)" = 0x10de ] || continue
    echo 1 >$function/enable
    read -r bar end flags <$function/resource
    echo "GPU $(cat $function/device) $(devmem $bar 32)"
done
echo END
poweroff -f
"""
_MAKE_INITRAMFS = """
folder=$(mktemp -d)
cd "$folder"
mkdir bin proc sys dev
cp /bin/busybox bin/
for name in sh mount cat echo devmem poweroff; do ln -s busybox bin/$name; done
cat >init
chmod +x init
find . | cpio --quiet --create --format=newc | gzip -1 >/run/initramfs.gz
"""
_QEMU = (
    "exec qemu-system-x86_64 -accel kvm -accel tcg -cpu max -machine q35 -m 256 -nodefaults "
    "-display none -serial stdio -no-reboot -kernel /boot/vmlinuz-* -initrd /run/initramfs.gz "
    "-append 'console=ttyS0 panic=-1 quiet' -device pcie-root-port,id=rp0,chassis=1,slot=1 "
    '-device vfio-pci,host="$1",bus=rp0'
)


def test_nested_guest_reads_the_registers_of_a_leased_gpu(
    start_host: StartHost, h100: GpuModel
) -> None:
    """The first read matters: it returns 0 if the device ignores the reset when QEMU opens the device.

    This was measured. The probable reason: QEMU clears its own copy of the BARs, and the host's
    kernel does not write the BARs again if the device still has the old values.
    """
    host = start_host(1)
    (address,) = gpu_addresses(host)
    holder = Holder(host, "holder").start(address)
    assert holder.answer() == {"held": [address]}
    made = host.guest.run("sh", "-euc", _MAKE_INITRAMFS, stdin=_INIT)
    assert made.ok, made.render()

    nested = host.guest.run("sh", "-c", _QEMU, "sh", address, timeout_s=_BOOT_S)

    assert nested.ok, nested.render()
    boot_register = h100.boot_registers[0]
    assert f"GPU {h100.pci.device:#06x} 0x{boot_register:08X}" in nested.stdout, nested.render()
    assert "END" in nested.stdout
    assert driver_of(host, address) == VFIO_DRIVER

    holder.tell("end")
    assert holder.answer() == {"ended": True}
    assert driver_of(host, address) == DRIVER


def test_gpu_in_use_by_a_machine_cannot_be_reset(start_host: StartHost) -> None:
    host = start_host(1)
    (address,) = gpu_addresses(host)
    holder = Holder(host, "holder").start(address)
    assert holder.answer() == {"held": [address]}
    group = host.guest.output_of(
        "readlink", f"/sys/bus/pci/devices/{address}/iommu_group"
    ).rpartition("/")[2]
    opened = f"exec 3<>/dev/vfio/{group}; exec sleep infinity"
    host.guest.output_of("systemd-run", "--quiet", "--unit=user", "bash", "-c", opened)
    host.guest.run("sh", "-c", f"until fuser -s /dev/vfio/{group}; do sleep 0.1; done")

    holder.tell("reset")

    assert f"'/dev/vfio/{group}' is open in" in str(holder.answer()["error"])
    host.guest.output_of("systemctl", "stop", "user")
    holder.tell("reset")
    assert holder.answer() == {"reset": 1}
