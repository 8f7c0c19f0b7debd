"""A node installs the driver for its kernel; it builds a driver only if the configuration allows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.provisioning import containerd
from harness.provisioning.command import CommandResult
from harness.provisioning.precompiled import PrecompiledImage

from .fakes import GPU_NODE, IMAGE, KERNEL, OTHER_KERNEL, OTHER_VERSION, VERSION, Invocation
from .simulation import DKMS

if TYPE_CHECKING:
    from .simulation import SimulatedNode

NAME = "registry.example/gpu/driver"
STEP = "install-precompiled-driver"


def reference(kernel: str = KERNEL) -> str:
    return f"{NAME}:{VERSION}-{kernel}-debian12"


def configured(**fields: object) -> dict[str, object]:
    return {**GPU_NODE, "precompiled_image": NAME, **fields}


def images_run(simulated: SimulatedNode) -> list[str]:
    """Return the images that ran, in order."""
    return [call[-4] for call in simulated.calls if call[:4] == ("ctr", "-n", "k8s.io", "run")]


def pulls(simulated: SimulatedNode) -> list[str]:
    return [call[-1] for call in simulated.calls if call[3:5] == ("image", "pull")]


@pytest.fixture(autouse=True)
def _no_image(simulated: SimulatedNode) -> None:
    simulated.images.clear()


def test_image_of_the_running_kernel_is_installed_and_removed(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.kernel = OTHER_KERNEL
    simulated.registry = {reference(KERNEL), reference(OTHER_KERNEL), IMAGE}

    assert invocation.run("boot", configured()) == 0

    installed = reference(OTHER_KERNEL)
    assert images_run(simulated) == [installed]
    assert pulls(simulated) == [installed]
    assert simulated.images == set()
    steps = invocation.steps()
    assert (steps[STEP], steps["pull-driver-image"], steps["install-driver"]) == (
        "done",
        "skipped",
        "skipped",
    )
    log = "\n".join(invocation.log())
    assert f"'{installed}' was compiled for the kernel '{OTHER_KERNEL}'." in log
    assert "AKS.CSE.configGPUDrivers.installPrecompiledDriver" in invocation.events()


def test_dkms_entry_for_another_kernel_is_removed_only_after_the_image_was_pulled(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """`dkms autoinstall`, which nvidia-modprobe.service runs, builds all registered modules."""
    simulated.build(VERSION, KERNEL)
    simulated.kernel = OTHER_KERNEL
    assert invocation.run("boot", configured(precompiled_fallback=False)) == 84
    assert KERNEL in simulated.files.names(f"{DKMS}/{VERSION}")
    simulated.registry = {reference(OTHER_KERNEL)}

    assert invocation.run("boot", configured(precompiled_fallback=False)) == 0

    # The simulated image registers its own kernel.
    assert simulated.files.names(f"{DKMS}/{VERSION}") == (OTHER_KERNEL, "source")


def test_image_that_containerd_has_is_not_pulled(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.images = {reference()}

    assert invocation.run("boot", configured()) == 0

    assert (pulls(simulated), images_run(simulated)) == ([], [reference()])


def test_image_is_pulled_even_if_the_output_has_a_not_found_error_of_a_mirror(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """A mirror is queried first; all queries end within the time budget."""
    simulated.registry = {reference()}
    run, limits = simulated.run, []

    def ask(argv: tuple[str, ...], *, timeout_s: float, **options: object) -> CommandResult:
        result = run(argv, timeout_s=timeout_s, **options)  # type: ignore[arg-type]
        if argv[3:5] not in {("images", "ls"), ("image", "pull")}:
            return result
        limits.append(timeout_s)
        return replace(result, stderr=NO_SUCH_IMAGE[2].format(name=reference()))

    simulated.run = ask  # type: ignore[method-assign, assignment]

    assert invocation.run("boot", configured(retry_budget_s=7)) == 0

    assert images_run(simulated) == [reference()]
    assert set(limits) == {7}


def test_missing_image_is_pulled_only_once_and_then_the_driver_is_built(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.registry = {IMAGE, reference(OTHER_KERNEL)}

    assert invocation.run("boot", configured()) == 0

    assert pulls(simulated) == [reference(), IMAGE]
    assert images_run(simulated) == [IMAGE]
    assert simulated.images == set()
    assert invocation.steps()[STEP] == "failed"
    assert (
        f"The registry has no '{reference()}': the driver is built on the 1 node(s) of the kernel "
        f"'{KERNEL}'." in "\n".join(invocation.log())
    )


def test_missing_image_ends_the_run_if_no_build_is_allowed(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.registry = {IMAGE}

    assert invocation.run("boot", configured(precompiled_fallback=False)) == 84

    assert (pulls(simulated), images_run(simulated)) == ([reference()], [])
    assert invocation.outcome()["error"] == (
        f"Step '{STEP}' failed. The registry has no '{reference()}': the 1 node(s) of the kernel "
        f"'{KERNEL}' get no driver. Publish the image, or set 'precompiled_fallback'."
    )


def test_registry_error_is_retried_three_times_and_not_reported_as_a_missing_image(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.registry = {IMAGE}
    refusal = CommandResult(argv=(), exit_code=1, stdout="", stderr="500 Internal Server Error")
    simulated.failing[f"ctr -n k8s.io image pull {reference()}"] = refusal

    assert invocation.run("boot", configured()) == 0

    assert pulls(simulated) == [*[reference()] * 3, IMAGE]
    assert images_run(simulated) == [IMAGE]
    log = "\n".join(invocation.log())
    assert "500 Internal Server Error" in log
    assert "The registry has no" not in log


#: What `ctr image pull` prints of an image that the registry lacks, and of other failures (containerd 3604,
#: 4397, 8173 and 10749, pushgateway 278, moby 52411, gpu-operator 595 and 647, Trow 30, nixery 102).
NO_SUCH_IMAGE = (
    'ctr: failed to resolve reference "{name}": {name}: not found',
    "ctr: failed to resolve image: {name}: not found",
    (
        'time="2026-01-01T00:00:00Z" level=info msg="trying next host" host=registry.example\n'
        'ctr: failed to resolve reference "{name}": {name}: not found\n'
    ),
    'ctr: failed to pull and unpack image "{name}": failed to resolve reference "{name}": {name}: not found',
)
OTHER_ANSWERS = (
    (
        "ctr: failed to copy: httpReadSeeker: failed open: could not fetch content descriptor sha256:aa "
        "(application/vnd.oci.image.layer.v1.tar+gzip) from remote: not found"
    ),
    (
        'ctr: apply layer error for "{name}": failed to extract layer sha256:cc: NotFound: failed to get reader '
        "from content store: content digest sha256:dd: not found"
    ),
    'ctr: image "{name}": not found',
    (
        'level=info msg="failed to resolve reference {name}: {name}: not found" host=mirror.example\n'
        "ctr: unexpected status from HEAD request: 500 Internal Server Error"
    ),
    'ctr: failed to resolve reference "{name}": other.example/gpu/driver:1: not found',
    (
        'ctr: failed to resolve reference "{name}": pull access denied, repository does not exist or may '
        "require authorization: server message: insufficient_scope: authorization failed"
    ),
    'ctr: failed to resolve reference "{name}": {name}: not found: try again',
    'ctr: failed to resolve reference "{name}-x": {name}-x: not found',
    "ctr: {name}: not found",
    "",
)


def says_no_such_image(*, stderr: str = "", stdout: str = "") -> bool:
    image = PrecompiledImage(
        repository="registry.example/gpu",
        image="driver",
        version=VERSION,
        kernel=KERNEL,
        os_tag="debian12",
    )
    assert image.reference == reference()
    refusal = CommandResult(argv=(), exit_code=1, stdout=stdout, stderr=stderr)
    return containerd.says_no_such_image(refusal, image)


def test_missing_image_is_recognised_by_its_name_in_the_error() -> None:
    """A missing layer or missing local content is not a missing image."""
    answers = [answer.format(name=reference()) for answer in NO_SUCH_IMAGE]
    others = [answer.format(name=reference()) for answer in OTHER_ANSWERS]

    assert [said for said in answers if not says_no_such_image(stderr=said)] == []
    assert [said for said in others if says_no_such_image(stderr=said)] == []
    assert not says_no_such_image(stdout=answers[0])


def test_install_is_not_tried_again_if_another_driver_version_is_loaded(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.registry = {reference()}
    simulated.files.write("/sys/module/nvidia/version", OTHER_VERSION)
    refusal = CommandResult(argv=(), exit_code=1, stdout="", stderr="version mismatch")
    simulated.failing["ctr -n k8s.io run"] = refusal

    assert invocation.run("boot", configured(precompiled_fallback=False)) == 84

    assert images_run(simulated) == [reference()]
    assert f"The driver {OTHER_VERSION} is loaded" in str(invocation.outcome()["error"])


def test_baked_driver_for_the_running_kernel_is_used_without_a_pull(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.images = {IMAGE}
    simulated.registry = {reference()}

    assert invocation.run("boot", configured()) == 0

    assert (pulls(simulated), images_run(simulated)) == ([], [IMAGE])
    assert STEP not in invocation.steps()


def test_precompiled_image_is_not_installed_if_the_driver_is_not_to_be_configured(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.files.remove("/opt/azure/aks-gpu/dkms-marker")
    simulated.registry = {reference()}

    assert invocation.run("boot", configured(config_gpu_driver_if_needed=False)) == 0

    assert images_run(simulated) == []
    assert invocation.steps()[STEP] == "skipped"


def test_distribution_without_a_version_is_refused(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.files.write("/etc/os-release", "ID=debian\n")

    assert invocation.run("boot", configured()) == 84

    assert "'/etc/os-release' does not name the node's system" in str(
        invocation.outcome()["error"]
    )


def test_image_is_pulled_if_the_command_that_lists_images_fails(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.registry = {reference()}
    simulated.failing["ctr -n k8s.io images ls"] = CommandResult(
        argv=(), exit_code=1, stdout=f"{reference()}\n", stderr=""
    )

    assert invocation.run("boot", configured()) == 0

    assert pulls(simulated) == [reference()]


def test_driver_of_another_version_and_a_leftover_container_are_removed_before_the_install(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """A killed run left the container."""
    simulated.build(OTHER_VERSION, KERNEL)
    simulated.registry = {reference()}
    simulated.containers = {"gpuinstall"}

    assert invocation.run("boot", configured(precompiled_fallback=False)) == 0

    assert images_run(simulated) == [reference()]
    names = list(invocation.steps())
    assert names.index("tear-down-driver") < names.index(STEP)
    assert simulated.files.names(DKMS) == (VERSION,)


def test_driver_is_built_if_the_precompiled_image_cannot_be_installed(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.registry = {reference(), IMAGE}
    run = simulated.run

    def refuse(argv: tuple[str, ...], **options: object) -> CommandResult:
        result = run(argv, **options)  # type: ignore[arg-type]
        if argv[3:4] == ("run",):
            return replace(result, exit_code=int(reference() in argv))
        return result

    simulated.run = refuse  # type: ignore[method-assign, assignment]

    assert invocation.run("boot", configured()) == 0

    assert images_run(simulated) == [*[reference()] * 5, IMAGE]
    assert simulated.images == set()
