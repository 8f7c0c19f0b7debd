"""Runs `suites/passthrough` inside the emulated host, whose machines run under its own KVM."""

from __future__ import annotations

import tarfile
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from suites.e2e.passthrough import checkout
from suites.passthrough.conftest import BUS_MEMORY_MIB

if TYPE_CHECKING:
    from harness.image import Image
    from harness.lab.machine import LabMachine

#: The emulated host's kernel runs guests about thirty times slower than a kernel on bare metal.
_TIMEOUT_MULTIPLIER = 40
_CACHE = "/root/.cache/gpu-node-harness"
_SEED = "/dev/disk/by-id/virtio-seed"
_SLOTS = 2
_UNPACK_S = 300.0
_STATE_S = 2400.0
_SUITE_S = 1200.0
_REPORT = "/run/junit.xml"


def copy_image(host: LabMachine, image: Image) -> None:
    """Copy an image from this host's cache to the cache of the emulated host."""
    archive = host.folder / "image.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(image.folder, image.folder.name)
    host.vm.unplug_seed(host.deadline(10.0))
    host.vm.plug_seed(archive)
    host.agent.wait_for_file(_SEED, host.deadline(10.0))
    host.guest.output_of("mkdir", "--parents", "--mode=700", f"{_CACHE}/images")
    host.guest.output_of(
        *("tar", "--extract", f"--file={_SEED}", f"--directory={_CACHE}/images"),
        "--no-same-owner",
        timeout_s=_UNPACK_S,
    )
    archive.unlink()


def prepare_nodes(host: LabMachine, image: Image) -> None:
    """Copy a node image to the host, and let the host boot and save a node."""
    copy_image(host, image)
    made = host.guest.run(
        *("env", "HOME=/root", "python3", "-m", "suites.e2e.passthrough.inside.saved_state"),
        *(image.name, str(BUS_MEMORY_MIB), str(_SLOTS), str(_TIMEOUT_MULTIPLIER)),
        timeout_s=_STATE_S,
    )
    made.check("The saved state of a node in the host")


def run_suite(
    host: LabMachine, image_name: str, *arguments: str, limit_s: float = _SUITE_S
) -> dict[str, str]:
    """Run pytest in the host with `arguments`, and return the outcome of each test by its name.

    An outcome is 'passed', or 'skipped: …', 'failed: …' or 'error: …' with the message.
    """
    ended = host.guest.run(
        *("env", f"--chdir={checkout.FOLDER}", "HOME=/root", "python3", "-m", "pytest"),
        *arguments,
        *("-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--evidence-dir=/run/evidence"),
        *(f"--image={image_name}", "--accelerator=kvm", "--require-gpu"),
        *(f"--timeout-multiplier={_TIMEOUT_MULTIPLIER}", f"--junitxml={_REPORT}"),
        timeout_s=limit_s,
    )
    report = host.guest.read_text(_REPORT)
    assert report is not None, ended.render()
    cases = ET.fromstring(report).iter("testcase")  # noqa: S314 - written by pytest
    return {str(case.get("name")): _outcome(case) for case in cases}


def _outcome(case: ET.Element) -> str:
    for kind, word in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
        found = case.find(kind)
        if found is not None:
            return f"{word}: {found.get('message')}"
    return "passed"
