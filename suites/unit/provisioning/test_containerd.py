"""The driver image in containerd; the plans of boots have its other commands."""

from __future__ import annotations

from harness.fixtures.recordings import load_recording
from harness.provisioning.command import CommandResult
from harness.provisioning.containerd import (
    INSTALL,
    fetch,
    present_query,
    pull,
    remove_left_container,
    run_driver_image,
    says_no_such_image,
)
from harness.provisioning.nvidia import DriverImage

from .fakes import IMAGE, SHA, VERSION

CANONICAL = DriverImage(driver_type="cuda-lts", version=VERSION, sha=SHA)
SOVEREIGN = DriverImage(
    driver_type="cuda-lts", version=VERSION, sha=SHA, registry="registry.example"
)


def test_image_is_absent_if_containerd_does_not_list_its_name() -> None:
    rows = {
        "": True,
        "\n": True,
        load_recording("ctr/1.6.20-images-ls").text: False,
        load_recording("ctr/1.7.24-images-ls").text: False,
    }

    assert {stdout: fetch(CANONICAL).is_met(listed(stdout)) for stdout in rows} == rows


def test_container_of_a_failed_try_or_a_killed_run_is_removed() -> None:
    run = run_driver_image(CANONICAL, container="gpuinstall", action="install", retry=INSTALL)
    (action,) = remove_left_container("gpuinstall")

    assert [" ".join(argv) for argv in run.cleanup] == [
        "ctr -n k8s.io task kill --all --signal SIGKILL gpuinstall",
        "ctr -n k8s.io task rm --force gpuinstall",
        "ctr -n k8s.io container rm gpuinstall",
    ]
    assert action.is_met(listed("gpuinstall\n"))
    assert not action.is_met(listed("\n"))


def listed(stdout: str) -> CommandResult:
    return CommandResult(argv=(), exit_code=0, stdout=stdout, stderr="")


def test_missing_image_is_recognised_by_a_single_line_of_the_error() -> None:
    rows = {
        f'ctr: failed to resolve reference "{IMAGE}": {IMAGE}: not found': True,
        f'  ctr: failed to resolve reference "{IMAGE}": {IMAGE}: not found \r\nend\n': True,
        f'ctr: failed to resolve reference "{IMAGE}":\n{IMAGE}: not found': False,
        f"failed to resolve reference\nctr: {IMAGE}: not found": False,
        f"ctr: {IMAGE}: not found: failed to resolve reference": False,
        f"ctr: failed to resolve {IMAGE}: not found": False,
    }

    assert {
        stderr: says_no_such_image(
            CommandResult(argv=(), exit_code=1, stdout="", stderr=stderr), CANONICAL
        )
        for stderr in rows
    } == rows


def test_image_is_listed_by_the_canonical_name_and_pulled_from_the_configured_registry() -> None:
    """Containerd lists the image by its canonical name and pulls it from the registry's name."""
    pulled = f"registry.example/aks/aks-gpu-cuda-lts:{VERSION}-{SHA}"
    answer = 'ctr: failed to resolve reference "{0}": {0}: not found'

    def says(name: str) -> CommandResult:
        return CommandResult(argv=(), exit_code=1, stdout="", stderr=answer.format(name))

    assert present_query(SOVEREIGN)[-1] == f"name=={IMAGE}"
    assert pull(SOVEREIGN).argv[-1] == pulled
    assert says_no_such_image(says(pulled), SOVEREIGN)
    assert not says_no_such_image(says(IMAGE), SOVEREIGN)
