"""Which kernel modules a teardown unloads, removes and keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from suites.e2e.guest_script import TAG_AS_GRID, shell
from suites.e2e.kernel_module import BAKED_VERSION, INSTALLED, load_dependents
from suites.e2e.promises import promise
from suites.e2e.teardown.node import (
    CUSTOMER,
    DKMS,
    HOLD,
    LOAD,
    OPTED_OUT,
    PROBE,
    expect_line,
    listed_modules,
)

if TYPE_CHECKING:
    from harness.api import GpuModel, Image
    from suites.e2e.conftest import StartNode

#: The time limit of a DKMS build, which takes a minute if three machines share two processors.
_BUILD_S = 600.0
UNIT = "suites/unit/provisioning/test_teardown.py"
#: The module of GPUDirect RDMA, which is a separate package.
FOREIGN = "gdrdrv"
#: A module of the kernel whose name begins like the names of the driver's modules.
BACKLIGHT = "nvidia_wmi_ec_backlight"


@promise(section="6", unit=UNIT)
def test_removal_is_incomplete_if_a_baked_file_stays_beside_a_customers_driver(
    start_node: StartNode,
) -> None:
    """The record is kept until no file of the image's driver is left."""
    locked = f"{DKMS}/{BAKED_VERSION}"
    lock = shell(f"{CUSTOMER}; chattr +i {locked}")
    node = start_node("locked-beside", gpus=[], before=[lock], command="teardown")
    node.guest.output_of("chattr", "-i", locked)
    before = node.evidence()
    node.provision("teardown")

    evidence = node.evidence()

    expect.provisioned(before)
    expect_line(before, "incomplete", marker_after="true")
    assert before.record is not None, "The record was expected to stay, but it is gone."
    expect.prebake_line(evidence, event="teardown", status="preserved_customer_driver")
    expect.no_record(evidence)


@promise(section="6", unit=UNIT)
def test_driver_that_a_package_installed_in_the_baked_version_stays_loaded(
    start_node: StartNode, h100: GpuModel
) -> None:
    """The customer installed the distribution's package, which is `nvidia-current` in DKMS."""
    package = "/var/lib/dkms/nvidia-current"
    node = start_node(
        "package",
        gpus=[h100],
        tags=OPTED_OUT,
        before=[*LOAD, shell(f"mkdir {package}; cp -a {DKMS}/{BAKED_VERSION} {package}")],
        command="teardown",
    )

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.prebake_line(
        evidence,
        event="teardown",
        status="preserved_customer_driver",
        installed_version=BAKED_VERSION,
    )
    assert "nvidia" in evidence.loaded_modules, "The customer's module was unloaded."


#: Each module with the module that it keeps in use, in the order of loading.
STACK = {
    "nvidia_peermem": "nvidia",
    "nvidia_modeset": "nvidia",
    "nvidia_drm": "nvidia_modeset",
}


@promise(section="6", unit=UNIT, any_provisioner=True)
def test_each_module_of_the_driver_is_unloaded_before_the_modules_that_it_uses(
    start_node: StartNode, h100: GpuModel
) -> None:
    """A driver with graphics has five modules; `nvidia` is unloaded last."""
    node = start_node(
        "stack",
        gpus=[h100],
        tags=OPTED_OUT,
        before=[*LOAD, load_dependents(STACK)],
        command="teardown",
    )

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect_line(evidence, "cleaned", module_before="true", module_after="false")
    left = [name for name in evidence.loaded_modules if name.startswith("nvidia")]
    assert left == [], f"No module of the driver was expected to stay loaded, but {left} did."
    expect.no_record(evidence)


@promise(section="6", unit=UNIT, any_provisioner=True)
def test_device_in_use_keeps_each_module_of_the_driver_loaded(
    start_node: StartNode, h100: GpuModel
) -> None:
    """The reference count of `nvidia` does not show the process, since modules use `nvidia` too."""
    node = start_node(
        "stack-held",
        gpus=[h100],
        tags=OPTED_OUT,
        before=[*LOAD, load_dependents(STACK), HOLD],
        command="teardown",
    )

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect_line(evidence, "incomplete", module_before="true", module_after="true")
    missing = {"nvidia", "nvidia_uvm", *STACK} - set(evidence.loaded_modules)
    assert missing == set(), f"All modules were expected to stay loaded, but not {missing}."


@promise(section="6", unit=UNIT, any_provisioner=True)
def test_foreign_module_that_uses_the_driver_keeps_it_loaded(
    start_node: StartNode, h100: GpuModel
) -> None:
    """The driver's other modules stay loaded too; the next run completes the removal."""
    node = start_node(
        "foreign",
        gpus=[h100],
        tags=OPTED_OUT,
        before=[*LOAD, load_dependents({FOREIGN: "nvidia"})],
        command="teardown",
    )
    held = node.evidence()
    node.guest.output_of("rmmod", FOREIGN)
    node.provision("teardown")

    evidence = node.evidence()

    expect.provisioned(held)
    expect_line(held, "incomplete", module_after="true", marker_after="true")
    assert {"nvidia", "nvidia_uvm", FOREIGN} <= set(held.loaded_modules)
    expect.provisioned(evidence)
    expect_line(evidence, "cleaned", module_before="true", module_after="false")
    expect.no_record(evidence)


@promise(section="6", unit=UNIT, each_change=True)
def test_removal_is_incomplete_if_a_baked_module_is_busy_beside_a_customers_driver(
    start_node: StartNode, h100: GpuModel
) -> None:
    """The record stays while the module is in use; the next run reports the preserved driver."""
    node = start_node(
        "busy-beside",
        gpus=[h100],
        tags=OPTED_OUT,
        before=[*LOAD, HOLD, shell(CUSTOMER)],
        command="teardown",
    )
    node.guest.output_of("systemctl", "stop", "holder")
    node.provision("teardown")

    evidence = node.evidence()

    expect.provisioned(evidence, run=1)
    expect_line(evidence.of_run(1), "incomplete", module_after="true", marker_after="true")
    expect.provisioned(evidence)
    expect.prebake_line(evidence, event="teardown", status="preserved_customer_driver")
    loaded = [name for name in evidence.loaded_modules if name.startswith("nvidia")]
    assert loaded == [], f"Our module was expected to be unloaded, but {loaded} are loaded."
    expect.no_record(evidence)


@promise(section="6", unit=UNIT)
def test_baked_module_of_another_kernel_is_removed_beside_a_customers_driver(
    start_node: StartNode, baked_image: Image
) -> None:
    """Otherwise the node would load the module when the node later boots the older kernel."""
    kernel = baked_image.other_kernel.version
    older = f"/lib/modules/{kernel}/updates/dkms"
    copy = shell(
        f"mkdir -p {older}; cp {INSTALLED} {older}; depmod {kernel}; "
        f"grep -q updates/dkms/nvidia /lib/modules/{kernel}/modules.dep; {CUSTOMER}"
    )
    node = start_node("older-kernel", gpus=[], before=[copy], command="teardown")

    evidence = node.evidence(files=[f"{older}/*"])

    expect.provisioned(evidence)
    expect.prebake_line(evidence, event="teardown", status="preserved_customer_driver")
    left = [path for path in evidence.paths if "/updates/dkms/nvidia" in path]
    assert left == [], f"Our modules were expected to be removed, but these were left: {left}."
    assert listed_modules(node) == []
    dangling = node.guest.output_of("find", DKMS, "-maxdepth", "1", "-xtype", "l")
    assert dangling == "", f"DKMS's links to our version were expected to go, but: {dangling}."


@pytest.mark.slow
@promise(section="6", unit=UNIT)
def test_next_run_removes_a_module_that_dkms_built_after_an_incomplete_removal(
    start_node: StartNode, baked_image: Image
) -> None:
    """For a kernel that is installed in between, DKMS builds a module from the remaining sources."""
    arrived = baked_image.other_kernel.version
    locked = (f"{DKMS}/{BAKED_VERSION}", f"/usr/src/nvidia-{BAKED_VERSION}")
    node = start_node("rebuilt", gpus=[], before=[["chattr", "+i", *locked]], command="teardown")
    node.guest.output_of("chattr", "-i", *locked)
    build = node.guest.run(
        "dkms", "install", f"nvidia/{BAKED_VERSION}", "-k", arrived, timeout_s=_BUILD_S
    )
    built = node.guest.run("sh", "-c", f"ls /lib/modules/{arrived}/updates/dkms/nvidia.ko*")
    before = node.evidence()
    node.provision("teardown")

    evidence = node.evidence()

    expect.provisioned(before)
    expect_line(before, "incomplete", marker_after="true", dkms_after="true")
    assert built.ok, f"DKMS was expected to build a module for '{arrived}', but: {build}."
    expect.provisioned(evidence)
    expect_line(evidence, "cleaned", dkms_before="true", marker_after="false")
    expect.no_module_for(evidence, arrived)
    expect.no_driver_artefact(evidence)


@promise(section="6", unit=UNIT, any_provisioner=True)
def test_kernel_module_with_a_similar_name_stays_loaded(start_node: StartNode) -> None:
    """The module is not part of the driver, and is not mistaken for a loaded driver."""
    folder = "/run/backlight"
    load = shell(
        f"mkdir {folder}; cd {folder}; echo 'obj-m := {BACKLIGHT}.o' >Makefile; "
        f"printf '#include <linux/module.h>\\nMODULE_LICENSE(\"GPL\");\\n' >{BACKLIGHT}.c; "
        f'make -s -C "/lib/modules/$(uname -r)/build" M={folder} modules; insmod {BACKLIGHT}.ko'
    )
    node = start_node("backlight", gpus=[], before=[load], command="teardown")

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect_line(evidence, "cleaned", module_before="false", module_after="false")
    assert BACKLIGHT in evidence.loaded_modules, f"'{BACKLIGHT}' was unloaded."
    expect.no_driver_artefact(evidence)


@promise(section="6", unit="suites/unit/provisioning/test_driver.py")
def test_run_fails_after_an_incomplete_removal_on_a_grid_node(start_node: StartNode) -> None:
    """The old driver would still work, but a node of another type must not get ready with that driver."""
    change = shell(f"{TAG_AS_GRID}; chattr +i $(dirname {PROBE})")
    node = start_node(
        "grid-locked",
        config={
            "gpu_driver_type": "grid",
            "config_gpu_driver_if_needed": False,
            "retry_budget_s": 45,
        },
        before=[change],
    )

    evidence = node.evidence()

    expect.decided(evidence, "teardown-install", reason="kind")
    expect_line(evidence, "incomplete", modprobe_after="true", marker_after="true")
    expect.events_recorded(evidence, "AKS.CSE.ensureGPUDrivers.cleanUpGridNodeCudaPrebake")
    expect.provisioned(evidence, exit_code="GPU_DRIVERS_START_FAIL")
    expect.run_ended_at(evidence, "install-driver")
