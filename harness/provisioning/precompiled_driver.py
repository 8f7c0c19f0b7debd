"""The step that installs a precompiled driver for the node's kernel, so that the node builds nothing.

The step is used only if the node would otherwise build the driver. The precompiled image has the
same entry point as the driver image, and the entry point's action `install` installs the
precompiled module.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from . import containerd
from .exit_codes import ExitCode, ProvisioningError
from .families import OS_RELEASE
from .nvidia import DKMS_TREE
from .plan import Do, PermanentFailure, Remove, Step
from .precompiled import KernelGroup, PrecompiledError, PrecompiledImage, choose_driver, os_tag
from .retry import StepFailedError, try_command

if TYPE_CHECKING:
    from .command import CommandResult
    from .configuration import Configuration
    from .facts import NodeFacts
    from .node_context import NodeContext

INSTALL_PRECOMPILED = "install-precompiled-driver"
EVENT = "AKS.CSE.configGPUDrivers.installPrecompiledDriver"
_QUERY_S = 30.0


def precompiled_image(configuration: Configuration, facts: NodeFacts) -> PrecompiledImage | None:
    """Return the precompiled image for this node's kernel, or None if none is configured.

    Raises ProvisioningError if the os-release file does not identify the system.
    """
    if configuration.precompiled_image is None:
        return None
    repository, _, image = configuration.precompiled_image.rpartition("/")
    try:
        tag = os_tag(facts.os_release)
    except PrecompiledError as error:
        raise ProvisioningError(
            ExitCode.GPU_DRIVERS_START_FAIL,
            f"A precompiled driver is wanted, but '{OS_RELEASE}' does not name the node's system. {error}",
        ) from error
    return PrecompiledImage(
        repository=repository,
        image=image,
        version=configuration.image(facts.driver_type).version,
        kernel=facts.kernel,
        os_tag=tag,
    )


def install_step(
    image: PrecompiledImage, configuration: Configuration, facts: NodeFacts, like: Step
) -> Step:
    """Return a copy of the step `like` that installs the precompiled image, not the driver image.

    If this step fails, the node builds the driver, unless the configuration forbids the build.
    """
    run = containerd.run_driver_image(
        image,
        container=containerd.INSTALL_CONTAINER,
        action="install",
        retry=containerd.INSTALL,
    )
    *before, build = like.actions
    has_fallback = configuration.precompiled_fallback
    return replace(
        like,
        name=INSTALL_PRECOMPILED,
        actions=(
            _fetch(image, facts.node_name, has_fallback=has_fallback),
            # Otherwise nvidia-modprobe would compile the baked driver in DKMS for this kernel.
            Remove(path=DKMS_TREE),
            *before,
            replace(run, judge=getattr(build, "judge", None)),
        ),
        exit_code=None if has_fallback else ExitCode.GPU_DRIVERS_START_FAIL,
        needs=("tolerate-early-cdi-refresh",),
        event=EVENT,
    )


def _fetch(image: PrecompiledImage, node_name: str, *, has_fallback: bool) -> Do:
    return Do(
        description=(
            f"pull {image.reference} if it is absent",
            "log whether the registry has it",
        ),
        function=partial(_choose, image, node_name, has_fallback=has_fallback),
    )


def _choose(
    image: PrecompiledImage, node_name: str, node: NodeContext, *, has_fallback: bool
) -> str | None:
    """Pull the precompiled image, and return a message about the image.

    Raises StepFailedError if the registry lacks the image, or does not answer.
    """
    group = KernelGroup(kernel=image.kernel, os_tag=image.os_tag, nodes=(node_name,))
    choice = choose_driver(
        group,
        repository=image.repository,
        image=image.image,
        version=image.version,
        is_available=lambda _: _is_available(node, image),
        has_fallback=has_fallback,
    )
    if choice.image is None:
        raise StepFailedError(choice.message)
    return choice.message


def _is_available(node: NodeContext, image: PrecompiledImage) -> bool:
    """Return whether containerd has the image, or could pull it.

    Raises StepFailedError if a pull fails for any reason except that the registry lacks the image.
    """
    present = node.runner.run(containerd.present_query(image), timeout_s=node.limit_s(_QUERY_S))
    if present.ok and present.stdout.strip():
        return True
    missing: list[CommandResult] = []

    def judge(_node: NodeContext, result: CommandResult) -> PermanentFailure | None:
        if result.ok or not containerd.says_no_such_image(result, image):
            return None
        missing.append(result)
        return PermanentFailure(message="The registry does not have this image.")

    try:
        try_command(node, replace(containerd.pull(image), judge=judge))
    except StepFailedError:
        if missing:
            return False
        raise
    return True
