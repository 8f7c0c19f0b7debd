"""Actions that pull a driver image into containerd, run the image, and remove the image."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from .nvidia import ACTIONS_DIRECTORY, PAYLOAD_DIRECTORY
from .plan import Action, MakeDirectory, Retry, Run, When

if TYPE_CHECKING:
    from .command import CommandResult

CTR = ("ctr", "-n", "k8s.io")
PULL = Retry(attempts=3, pause_s=5, timeout_s=120)
INSTALL = Retry(attempts=5, pause_s=10, timeout_s=600)
INSTALL_ONCE = Retry(timeout_s=600)
BUILD = Retry(attempts=3, pause_s=10, timeout_s=600)
INSTALL_CONTAINER = "gpuinstall"
BUILD_CONTAINER = "gpuprebuild"
_RESOLVING = re.compile(r"failed to resolve (?:reference|image)")
LOCAL = Retry(timeout_s=60)
"""The time limit of a command that only changes containerd's local store."""
READY = Retry(attempts=240, pause_s=0.1, timeout_s=1, max_timeout_s=8)
"""The limit grows, since on an overloaded node each start of `ctr` may take longer than a second."""


class ContainerImage(Protocol):
    """An image with a driver; the image has one name in its registry and one in containerd."""

    @property
    def name(self) -> str: ...

    @property
    def pull_reference(self) -> str: ...


def wait_until_ready() -> tuple[Action, ...]:
    """Return actions that wait for containerd and make the driver container's mounted folders."""
    return (
        Run(argv=("ctr", "version"), retry=READY),
        MakeDirectory(path=ACTIONS_DIRECTORY),
        MakeDirectory(path=PAYLOAD_DIRECTORY),
    )


def _prints_nothing(result: CommandResult) -> bool:
    return not result.stdout.strip()


def present_query(image: ContainerImage) -> tuple[str, ...]:
    """Return the command that prints nothing if containerd lacks the image."""
    return (*CTR, "images", "ls", "-q", f"name=={image.name}")


def pull(image: ContainerImage) -> Run:
    """Pull the image by its name in the registry."""
    return Run(argv=(*CTR, "image", "pull", image.pull_reference), retry=PULL)


def says_no_such_image(result: CommandResult, image: ContainerImage) -> bool:
    """Return whether a failed pull says that the registry has no image of this name.

    Only an error about resolving the image's name means that the registry lacks the image. Another
    error with "not found" may be about a layer, local content or a snapshot of an existing image;
    in this case, a retry, or another node of the registry, may help (containerd 3604, 4397 and
    10749).
    """
    answer = f"{image.pull_reference}: not found"
    return any(
        line.endswith(answer) and _RESOLVING.search(line.removesuffix(answer)) is not None
        for line in (each.strip() for each in result.stderr.splitlines())
    )


def fetch(image: ContainerImage) -> When:
    """Pull the image and tag it with its canonical name, unless containerd has the image.

    The filter of `ctr images ls` compares names literally. With a regular expression, a dot in the
    name would match any character, so the pull would be skipped if containerd had another version
    of the image (AgentBaker 8615).
    """
    then: tuple[Action, ...] = (pull(image),)
    if image.pull_reference != image.name:
        then = (
            pull(image),
            Run(argv=(*CTR, "image", "tag", image.pull_reference, image.name), retry=LOCAL),
            Run(argv=(*CTR, "image", "rm", image.pull_reference), retry=LOCAL, is_optional=True),
        )
    return When(
        query=present_query(image),
        timeout_s=30,
        condition="it prints nothing",
        otherwise="The image exists.",
        is_met=_prints_nothing,
        then=then,
    )


def run_driver_image(image: ContainerImage, *, container: str, action: str, retry: Retry) -> Run:
    """Run the driver image's entry point in a privileged container on the node.

    An attempt that reaches its time limit leaves its container behind, so all later attempts would
    fail because the container's name is in use. Therefore the container is removed after each
    failed attempt.
    """
    return Run(
        argv=(
            *CTR,
            "run",
            "--privileged",
            "--rm",
            "--net-host",
            "--with-ns",
            "pid:/proc/1/ns/pid",
            "--mount",
            f"type=bind,src={PAYLOAD_DIRECTORY},dst=/mnt/gpu,options=rbind",
            "--mount",
            f"type=bind,src={ACTIONS_DIRECTORY},dst=/mnt/actions,options=rbind",
            image.name,
            container,
            "/entrypoint.sh",
            action,
        ),
        retry=retry,
        cleanup=_removal(container),
    )


def _removal(container: str) -> tuple[tuple[str, ...], ...]:
    return (
        (*CTR, "task", "kill", "--all", "--signal", "SIGKILL", container),
        (*CTR, "task", "rm", "--force", container),
        (*CTR, "container", "rm", container),
    )


def remove_left_container(container: str) -> tuple[When]:
    """Remove the container that was left by a killed run or by a power loss.

    If the old container remained, its name would be in use, the only attempt of an install without
    a build would fail, and the driver would be built again. Processes of the old container would
    disturb the new container.
    """
    return (
        When(
            query=(*CTR, "containers", "ls", "-q", f"id=={container}"),
            timeout_s=30,
            condition="it prints something",
            otherwise="",
            is_met=_prints_something,
            then=tuple(
                Run(argv=argv, retry=LOCAL, is_optional=True) for argv in _removal(container)
            ),
        ),
    )


def _prints_something(result: CommandResult) -> bool:
    return bool(result.stdout.strip())


def remove(image: ContainerImage) -> Run:
    """Remove the image asynchronously, because waiting would delay the boot by seconds.

    Both the image's canonical name and the image's name in the registry are removed: a run that was
    killed after the pull may have left the registry name, and containerd keeps an image's content
    as long as the image has a name. A missing name is not an error.
    """
    names = dict.fromkeys((image.name, image.pull_reference))
    return Run(argv=(*CTR, "images", "rm", *names), retry=LOCAL)
