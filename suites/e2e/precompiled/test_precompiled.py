"""A boot pulls the driver that was compiled for the node's kernel; nothing is built on the node.

Section 11 of the contract: each kernel of a fleet has an image
`<repository>/<image>:<version>-<kernel>-<osTag>`. Upstream has no fallback for a missing image.
This provisioning builds the driver and logs the build, or ends with exit code 84.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.provisioning.precompiled import KERNEL_LABEL, ClusterNode, group_by_kernel
from harness.registry import PullFault
from suites.e2e.precompiled.conftest import NAME, reference_of
from suites.e2e.promises import promise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.evidence import Evidence
    from harness.image import Image
    from harness.lab.registry import Registry
    from suites.e2e.precompiled.conftest import Publish, StartPrecompiled

pytestmark = [
    promise(section="11", unit="suites/unit/provisioning/test_precompiled_driver.py"),
    pytest.mark.vm_driver(
        "qemu", reason="libvirt forbids QEMU to start the program that leads to the host's port"
    ),
]

STEP = "install-precompiled-driver"
START_FAIL = 84
_PULL_S = 120.0
ONLY_PRECOMPILED: Mapping[str, object] = {"precompiled_fallback": False}


def expect_precompiled(evidence: Evidence, kernel: str) -> None:
    """Expect a working driver for a kernel; DKMS on this node must not list this driver."""
    expect.provisioned(evidence)
    expect.gpu_bound(evidence, device="2330")
    assert (evidence.vermagic_of(kernel) or "").split()[:1] == [kernel]
    built = [build for build in evidence.dkms_builds if build.kernel == kernel]
    assert built == [], f"Nothing was to be compiled for '{kernel}', but DKMS has {built}."
    assert expect.step_of(evidence, STEP).status == "done"
    assert expect.step_of(evidence, "install-driver").status == "skipped"


@promise(section="11", unit="suites/unit/provisioning/test_precompiled_driver.py")
def test_precompiled_image_for_the_kernel_is_used_and_nothing_is_compiled(
    start_precompiled: StartPrecompiled, publish: Publish, node_image: Image
) -> None:
    """A node without a driver pulls the driver image and removes the image afterwards."""
    kernel = node_image.newest_kernel
    reference = publish(kernel)

    evidence = start_precompiled("present", image=node_image).evidence()

    expect.decided(evidence, "install", reason="no_record")
    expect_precompiled(evidence, kernel.version)
    expect.log_line(evidence, f"'{reference}' was compiled for the kernel '{kernel.version}'.")
    expect.image_absent(evidence, reference)


def test_image_that_is_present_is_not_pulled(
    start_precompiled: StartPrecompiled, publish: Publish, registry: Registry, node_image: Image
) -> None:
    """A boot does not need the registry if containerd already has the image."""
    kernel = node_image.newest_kernel
    reference = publish(kernel)
    node = start_precompiled("pulled", image=node_image, command="plan")
    node.guest.output_of("ctr", "-n", "k8s.io", "image", "pull", reference, timeout_s=_PULL_S)
    before = len(registry.log.requests)
    node.provision("boot")

    evidence = node.evidence()

    expect_precompiled(evidence, kernel.version)
    asked = registry.log.requests[before:]
    assert not asked, f"The registry was expected to be asked nothing, but it was: {asked}."


@pytest.mark.slow
def test_missing_image_is_reported_and_the_driver_is_built(
    start_precompiled: StartPrecompiled, registry: Registry, node_image: Image
) -> None:
    """The registry is queried once; the log says that the driver is built instead."""
    kernel = node_image.newest_kernel.version

    evidence = start_precompiled("fallback", image=node_image).evidence()

    assert node_image.driver is not None
    expect.provisioned(evidence)
    expect.step_failed(evidence, STEP)
    expect.log_line(evidence, f"The registry has no '{NAME}:")
    expect.log_line(evidence, "the driver is built on the 1 node(s)")
    expect.module_built_for(evidence, kernel, version=node_image.driver.version)
    expect.module_built_since_boot(evidence, kernel)
    expect.gpu_bound(evidence, device="2330")
    expect.image_absent(evidence, node_image.driver.reference)
    expect.pulls_tried(registry.log, 1)


@promise(
    section="11", unit="suites/unit/provisioning/test_precompiled_driver.py", each_change=True
)
def test_missing_image_ends_the_boot_if_no_build_is_allowed(
    start_precompiled: StartPrecompiled, registry: Registry, node_image: Image, os_tag: str
) -> None:
    """The exit code is 84, and the message has the image and a remedy; nothing is built."""
    wanted = reference_of(node_image, node_image.newest_kernel, os_tag)

    evidence = start_precompiled("refusal", ONLY_PRECOMPILED, image=node_image).evidence()

    expect.provisioned(evidence, exit_code=START_FAIL)
    expect.run_ended_at(evidence, STEP)
    expect.log_line(evidence, f"The registry has no '{wanted}'")
    expect.log_line(evidence, "Publish the image, or set 'precompiled_fallback'.")
    expect.no_driver_artefact(evidence)
    expect.pulls_tried(registry.log, 1)


def test_precompiled_image_for_another_kernel_is_not_used(
    start_precompiled: StartPrecompiled, publish: Publish, registry: Registry, baked_image: Image
) -> None:
    """The registry has only the driver for another kernel; the boot fails as with an empty registry.

    The baked driver, which is for that other kernel too, stays, since no new driver replaces it.
    """
    baked = baked_image.newest_kernel
    publish(baked)

    evidence = start_precompiled(
        "other", ONLY_PRECOMPILED, kernel=baked_image.other_kernel
    ).evidence()

    expect.provisioned(evidence, exit_code=START_FAIL)
    expect.decided(evidence, "install", reason="kernel")
    expect.run_ended_at(evidence, STEP)
    assert {each.status for each in registry.log.requests} == {404}
    kept = [build.kernel for build in evidence.dkms_builds]
    assert kept == [baked.version], (
        f"DKMS was expected to keep the driver for '{baked.version}', but it has those for {kept}."
    )


def test_failing_registry_is_tried_three_times_and_the_image_is_not_reported_as_missing(
    start_precompiled: StartPrecompiled, publish: Publish, registry: Registry, node_image: Image
) -> None:
    """An error of the registry does not show whether the registry has the image."""
    publish(node_image.newest_kernel)
    registry.disturb_all(PullFault(status=500))

    evidence = start_precompiled("error", ONLY_PRECOMPILED, image=node_image).evidence()

    expect.provisioned(evidence, exit_code=START_FAIL)
    expect.run_ended_at(evidence, STEP)
    expect.log_line(evidence, "500 Internal Server Error")
    assert "The registry has no" not in evidence.log
    expect.pulls_tried(registry.log, 3)
    expect.pulls_paused(registry.log, 5)


def test_missing_layer_is_not_reported_as_a_missing_image(
    start_precompiled: StartPrecompiled, publish: Publish, registry: Registry, node_image: Image
) -> None:
    """Containerd reports a missing layer and a missing image with the same words, "not found"."""
    publish(node_image.newest_kernel)
    registry.disturb_all(PullFault(blob_status=404))

    evidence = start_precompiled("layer", ONLY_PRECOMPILED, image=node_image).evidence()

    expect.provisioned(evidence, exit_code=START_FAIL)
    expect.run_ended_at(evidence, STEP)
    expect.log_line(evidence, "not found")
    assert "The registry has no" not in evidence.log
    expect.pulls_tried(registry.log, 3)


@pytest.mark.slow
def test_nodes_with_different_kernels_pull_different_images(
    start_precompiled: StartPrecompiled,
    publish: Publish,
    registry: Registry,
    baked_image: Image,
    node_image: Image,
) -> None:
    """With one configuration and one registry, each node pulls the image for its own kernel."""
    kernels = (baked_image.newest_kernel, baked_image.other_kernel)
    references = {kernel.version: publish(kernel) for kernel in kernels}
    fleet = [
        ClusterNode(name=kernel, os_tag=name.rpartition("-")[2], labels={KERNEL_LABEL: kernel})
        for kernel, name in references.items()
    ]
    new, old = (group.kernel for group in group_by_kernel(fleet, is_label_required=True).groups)

    first = start_precompiled("new", image=node_image).evidence()
    # The node's image was baked for the other kernel, so it has no module for the node's kernel.
    second = start_precompiled(
        "old", image=baked_image, kernel=baked_image.other_kernel
    ).evidence()

    expect_precompiled(first, new)
    expect.decided(second, "install", reason="kernel")
    expect_precompiled(second, old)
    asked = [each.path for each in registry.log.requests if each.method == "HEAD"]
    assert [path.rpartition("/")[2] for path in asked] == [
        references[kernel].rpartition(":")[2] for kernel in (new, old)
    ]


def test_baked_driver_for_the_running_kernel_needs_no_registry(
    start_precompiled: StartPrecompiled, registry: Registry
) -> None:
    """The module for the kernel of the bake exists, so the registry is not queried."""
    evidence = start_precompiled("baked", ONLY_PRECOMPILED).evidence()

    expect.provisioned(evidence)
    expect.decided(evidence, "install-skip-build", reason="ok")
    expect.no_request(registry.log)
