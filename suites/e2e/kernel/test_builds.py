"""When a node builds the module, for which kernel, and what the node does if it can't."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from harness import expect
from suites.e2e.any_provisioner import is_own
from suites.e2e.guest_script import shell
from suites.e2e.interruption.interrupt import FAIL, GO_ON, SEEN, Interruption
from suites.e2e.kernel_module import (
    BAKED_VERSION,
    LOAD_OTHER_VERSION,
    OTHER_VERSION,
    refused_by,
)
from suites.e2e.promises import promise

if TYPE_CHECKING:
    from harness.api import Evidence, Image
    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_driver.py"
#: This budget is enough to begin the install, but not for all of its five attempts.
FEW_TRIES = {"retry_budget_s": 90}
#: The number of a kernel build, such as 43 in 6.1.0-43-cloud-amd64 and 57 in
#: 6.12.57+deb13-cloud-amd64.
_LAST_NUMBER = re.compile(r"[0-9]+(?=-cloud|\+deb)")
_RESIDENT = "/sys/module/nvidia/version"
_RUN_ARGUMENTS = "/run/driver-image-arguments"
#: The command line in the contract, without its end: the image, the container and the action.
_RUN_LINE = (
    "-n k8s.io run --privileged --rm --net-host --with-ns pid:/proc/1/ns/pid "
    "--mount type=bind,src=/opt/gpu,dst=/mnt/gpu,options=rbind "
    "--mount type=bind,src=/opt/actions,dst=/mnt/actions,options=rbind"
)


def expect_loaded(evidence: Evidence, version: str) -> None:
    loaded = (evidence.file(_RESIDENT) or "none").strip()
    assert loaded == version, (
        f"The loaded module was expected to be {version}, but '{_RESIDENT}' says {loaded}."
    )


def expect_run_line(evidence: Evidence, image: str, action: str) -> None:
    ran = (evidence.file(_RUN_ARGUMENTS) or "nothing").strip()
    expected = f"{_RUN_LINE} {image} gpuinstall /entrypoint.sh {action}"
    assert ran == expected, (
        f"The driver image was expected to run by:\n  ctr {expected}\nbut it ran by:\n  ctr {ran}"
    )


@promise(section="5", unit=UNIT)
def test_run_without_headers_for_the_running_kernel_fails(
    start_node: StartNode, baked_image: Image
) -> None:
    """Without headers no module can be built, so the run ends with the exit code of the driver."""
    other = baked_image.other_kernel
    node = start_node(
        "no-headers",
        kernel=other,
        config=FEW_TRIES,
        before=[["rm", "-r", f"/lib/modules/{other.version}/build"]],
    )

    evidence = node.evidence()

    expect.decided(evidence, "install", reason="kernel")
    expect.provisioned(evidence, exit_code="GPU_DRIVERS_START_FAIL")
    expect.run_ended_at(evidence, "install-driver")
    expect.log_line(
        evidence, f"Unable to find the kernel source tree for the kernel '{other.version}'"
    )
    expect.no_module_for(evidence, other.version)


@promise(section="5", unit=UNIT, each_change=True, any_provisioner=True)
def test_prebuilt_module_is_loaded_in_the_intended_version(
    start_node: StartNode, baked_image: Image
) -> None:
    """The kernel has loaded the version in the record, from a file that was not compiled on the node.

    The driver image is run with the command line in the contract.
    """
    assert baked_image.driver is not None
    version, kernel = baked_image.driver.version, baked_image.newest_kernel.version
    write_arguments = Interruption(
        at="ctr -n k8s.io run *", act=f'echo "$*" >{_RUN_ARGUMENTS}'
    ).file
    node = start_node("prebuilt", files=[write_arguments])

    evidence = node.evidence(files=[_RESIDENT, _RUN_ARGUMENTS])

    expect.provisioned(evidence)
    expect.decided(evidence, "install-skip-build", reason="ok")
    expect_loaded(evidence, version)
    expect.module_built_before_boot(evidence, kernel)
    expect.gpu_bound(evidence, device="2330")
    expect.record_names(evidence, kernel=kernel, driver_version=version)
    if is_own(evidence.provisioner):
        expect_run_line(evidence, baked_image.driver.reference, "install-skip-build")


@promise(section="5", unit=UNIT)
def test_loaded_module_of_another_version_ends_the_run_without_retries(
    start_node: StartNode,
) -> None:
    """An install cannot replace a loaded module, so retries would not help."""
    # The driver's own check would also find the mismatch; this test is only about provisioning.
    load_other = shell(f"{LOAD_OTHER_VERSION}; mv /usr/bin/lib64 /usr/bin/lib64.gone")
    node = start_node("resident", before=[load_other])

    evidence = node.evidence(files=[_RESIDENT])

    expect.provisioned(evidence, exit_code="GPU_DRIVERS_START_FAIL")
    expect_loaded(evidence, OTHER_VERSION)
    outcome = evidence.outcome
    assert outcome is not None
    assert outcome.error is not None
    sentence = f"The driver {OTHER_VERSION} is loaded, so {BAKED_VERSION} cannot be loaded"
    assert sentence in outcome.error


@pytest.mark.slow
@promise(section="5", unit=UNIT, any_provisioner=True)
def test_full_build_records_the_running_kernel_and_the_next_run_skips_the_build(
    start_node: StartNode, baked_image: Image
) -> None:
    """The record names the running kernel, so the next run skips the build."""
    other = baked_image.other_kernel
    node = start_node("full-build", kernel=other)
    node.provision("plan")

    evidence = node.evidence(files=[_RESIDENT])

    assert baked_image.driver is not None
    expect.provisioned(evidence, run=1)
    expect.decided(evidence, "install", reason="kernel", run=1)
    expect.module_built_for(evidence, other.version, version=baked_image.driver.version)
    expect.record_names(evidence, kernel=other.version)
    expect_loaded(evidence, baked_image.driver.version)
    expect.decided(evidence, "install-skip-build", reason="ok")


@pytest.mark.slow
@promise(section="4", unit="suites/unit/provisioning/test_bake.py")
def test_second_bake_replaces_the_staged_files_of_the_first(
    start_node: StartNode, baked_image: Image
) -> None:
    """Otherwise a library of the older driver would stay beside the new libraries and be loaded too.

    The build of the second bake fails once, and is tried again.
    """
    old = "/usr/bin/lib64/lib64/libcuda.so.570.86.15"
    fails_once = Interruption(at="ctr -n k8s.io run * gpuprebuild *build-only", act=FAIL).file
    node = start_node(
        "bake-again",
        files=[fails_once],
        gpus=[],
        command="bake",
        config={"gpu_node": False, "feature_flags": "NVIDIA_CUDA_PREBAKE"},
        before=[["mkdir", "-p", "/usr/bin/lib64/lib64"], ["touch", old]],
    )

    evidence = node.evidence(files=["/usr/bin/lib64/lib64/*"])

    expect.provisioned(evidence)
    expect.record_names(evidence, kernel=baked_image.newest_kernel.version)
    expect.driver_installed(evidence)
    assert baked_image.driver is not None
    expect.image_present(evidence, baked_image.driver.reference)
    detail = expect.step_of(evidence, "build-driver").detail
    assert "Succeeded on attempt 2." in (detail or ""), f"The build was tried: {detail}"
    assert old not in evidence.paths, f"'{old}' was expected to be gone."


@pytest.mark.slow
@promise(section="4", unit="suites/unit/provisioning/test_bake.py")
def test_bake_is_for_the_newest_kernel_that_has_headers(
    start_node: StartNode, baked_image: Image
) -> None:
    """Versions are compared by their numbers: 6.1.0-9 is older than 6.1.0-43.

    The running kernel of the build machine counts only if no kernel has headers.
    """
    newest = baked_image.newest_kernel.version
    older = _LAST_NUMBER.sub("9", newest)
    assert older > newest, f"As text, '{older}' was expected to come after '{newest}'."
    without_headers = "/lib/modules/99.0.0-1-cloud-amd64"
    node = start_node(
        "newest",
        kernel=baked_image.other_kernel,
        gpus=[],
        command="bake",
        config={"gpu_node": False, "feature_flags": "NVIDIA_CUDA_PREBAKE"},
        before=[
            ["mkdir", "-p", f"/lib/modules/{older}/build", without_headers],
            # An Ubuntu kernel has this link without its headers too.
            ["ln", "-s", "/nowhere", f"{without_headers}/build"],
        ],
    )

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.record_names(evidence, kernel=newest)
    expect.log_line(evidence, f"(kernel {newest})")


@pytest.mark.slow
@promise(section="3", unit=UNIT)
def test_prebuilt_module_that_does_not_work_is_built_again(
    start_node: StartNode, baked_image: Image
) -> None:
    """The fast path is tried once; then the module is built.

    The kernel log has faults that a build repairs, and a refusal by another release of the driver.
    Neither prevents the build.
    """
    runs = Interruption(at="ctr -n k8s.io run *install-skip-build", act=GO_ON)
    no_firmware = (
        "nvidia 0000:02:00.0: Direct firmware load for nvidia/580.126.09/gsp_tu10x.bin failed "
        "with error -2"
    )
    other_kernel = "nvidia: version magic '6.1.0-5-cloud-amd64' should be '6.1.0-9-cloud-amd64'"
    node = start_node(
        "broken-bake",
        files=[runs.file],
        before=[
            ["rm", "-r", "/usr/bin/lib64"],
            *(shell(f'echo "{fault}" >/dev/kmsg') for fault in (no_firmware, other_kernel)),
            refused_by(OTHER_VERSION),
        ],
    )

    evidence = node.evidence(files=[SEEN])

    expect.provisioned(evidence)
    expect.decided(evidence, "install-skip-build", reason="ok")
    expect.step_failed(evidence, "install-prebuilt-driver")
    expect.log_line(evidence, "no libraries are staged in")
    tried = (evidence.file(SEEN) or "0").strip()
    assert tried == "1", f"The fast path was expected to be tried once, but was {tried} times."
    assert expect.step_of(evidence, "install-driver").status == "done"
    expect.module_built_since_boot(evidence, baked_image.newest_kernel.version)
    expect.driver_installed(evidence)


@pytest.mark.slow
@promise(section="5", unit=UNIT, any_provisioner=True)
def test_concurrent_dkms_build_leaves_one_module(
    start_node: StartNode, baked_image: Image
) -> None:
    """At a boot, DKMS builds modules for a new kernel while provisioning builds the same modules."""
    other = baked_image.other_kernel
    race = [
        "systemd-run",
        "--quiet",
        "--unit",
        "autoinstall",
        "dkms",
        "autoinstall",
        "-k",
        other.version,
    ]
    node = start_node("race", kernel=other, before=[race])
    node.guest.run("sh", "-c", "while systemctl is-active --quiet autoinstall; do sleep 0.2; done")

    evidence = node.evidence(files=[_RESIDENT])

    assert baked_image.driver is not None
    expect.provisioned(evidence)
    expect.module_built_for(evidence, other.version, version=baked_image.driver.version)
    expect.gpu_bound(evidence, device="2330")
    expect_loaded(evidence, baked_image.driver.version)
