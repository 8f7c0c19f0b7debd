"""The driver image in containerd: fetched, run on the host, removed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .nvidia import ACTIONS_DIRECTORY, PAYLOAD_DIRECTORY
from .plan import Action, MakeDirectory, Retry, Run, When

if TYPE_CHECKING:
    from .command import CommandResult
    from .nvidia import DriverImage

CTR = ("ctr", "-n", "k8s.io")
PULL = Retry(attempts=3, pause_s=5, timeout_s=120)
INSTALL = Retry(attempts=5, pause_s=10, timeout_s=600)
INSTALL_ONCE = Retry(timeout_s=600)
BUILD = Retry(attempts=3, pause_s=10, timeout_s=600)
INSTALL_CONTAINER = "gpuinstall"
BUILD_CONTAINER = "gpuprebuild"
LOCAL = Retry(timeout_s=60)
"""Limit of what only touches containerd's own store."""


def wait_until_ready() -> tuple[Action, ...]:
    """Wait for containerd, and make the folders that the driver image is given."""
    return (
        Run(argv=("ctr", "version"), retry=Retry(attempts=240, pause_s=0.1, timeout_s=1)),
        MakeDirectory(path=ACTIONS_DIRECTORY),
        MakeDirectory(path=PAYLOAD_DIRECTORY),
    )


def _says_nothing(result: CommandResult) -> bool:
    return not result.stdout.strip()


def fetch(image: DriverImage) -> When:
    """Pull the image unless it is there, and give it its canonical name.

    The filter compares names as they are: as a regular expression the dots of another version
    would match too, and the pull would be left out (AgentBaker 8615).
    """
    pull = Run(argv=(*CTR, "image", "pull", image.pull_reference), retry=PULL)
    then: tuple[Action, ...] = (pull,)
    if image.pull_reference != image.name:
        then = (
            pull,
            Run(argv=(*CTR, "image", "tag", image.pull_reference, image.name), retry=LOCAL),
            Run(argv=(*CTR, "image", "rm", image.pull_reference), retry=LOCAL, is_optional=True),
        )
    return When(
        query=(*CTR, "images", "ls", "-q", f"name=={image.name}"),
        timeout_s=30,
        condition="it prints nothing",
        otherwise="The image is there.",
        is_met=_says_nothing,
        then=then,
    )


def run_driver_image(image: DriverImage, *, container: str, action: str, retry: Retry) -> Run:
    """Run the driver image's entry point on the host.

    A try that its limit ends leaves the container behind, whose name would then refuse every
    later try; so each failed try is tidied.
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
        tidy=(
            (*CTR, "task", "kill", "--all", "--signal", "SIGKILL", container),
            (*CTR, "task", "rm", "--force", container),
            (*CTR, "container", "rm", container),
        ),
    )


def remove(image: DriverImage) -> Run:
    """Remove the image in the background: waiting for it would cost the boot seconds."""
    return Run(argv=(*CTR, "images", "rm", image.name), retry=LOCAL)
