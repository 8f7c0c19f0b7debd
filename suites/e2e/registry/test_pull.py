"""A boot pulls the driver image only if containerd lacks the image, with three attempts.

Section 5 of the contract, step 7: look for the image by its exact name; try at most 3 pulls, 5 s
apart, each for 120 s at most; if all fail, end with exit code 84.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.registry import PullFault
from suites.e2e.any_provisioner import expect_run_ended_at
from suites.e2e.promises import promise
from suites.e2e.registry.conftest import OTHER_SHA

if TYPE_CHECKING:
    from harness.api import Argv
    from harness.image import Image
    from harness.lab.registry import Registry
    from suites.e2e.registry.conftest import StartPulling

UNIT = "suites/unit/provisioning/test_containerd.py"
pytestmark = [
    promise(section="5, step 7", unit=UNIT),
    pytest.mark.vm_driver(
        "qemu", reason="libvirt forbids QEMU to start the program that leads to the host's port"
    ),
]

PAUSE_S = 5.0
TRY_LIMIT_S = 120.0
#: This size is less than the layer of the driver image, and more than any other blob.
IN_THE_LAYER = 300_000
#: At this rate the driver image takes longer than any test.
NEVER_BYTES_PER_S = 1000
BUDGET_S = 30
START_FAIL = 84
MISSING_SHA = "19700101000000"


_BLOBS = "/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256"
#: A pull fetches only missing blobs. So this command removes the content and forces a garbage
#: collection: until then, containerd reuses blobs that are still on its disk.
REMOVE_CONTENT: Argv = [
    *("sh", "-euc"),
    (
        "ctr -n k8s.io content ls -q | xargs ctr -n k8s.io content rm; "
        "ctr -n k8s.io images ls -q | xargs ctr -n k8s.io images rm --sync; "
        f'[ -z "$(ls {_BLOBS})" ]'
    ),
]


@promise(section="5, step 7", unit=UNIT, each_change=("public cloud",))
@pytest.mark.parametrize(
    "base",
    [
        pytest.param("mcr.microsoft.com", id="public cloud"),
        pytest.param("mcr.azk8s.cn", id="sovereign cloud"),
    ],
)
def test_present_image_is_used_without_a_request_to_the_registry(
    start_pulling: StartPulling,
    driver_registry: Registry,
    baked_image: Image,
    base: str,
) -> None:
    """If containerd has the image, the node sends no request, not even for a digest.

    Containerd has the image under its canonical name, in a sovereign cloud too.
    """
    assert baked_image.driver is not None

    evidence = start_pulling(
        "present", gpu_image_sha=baked_image.driver.sha, mcr_repository_base=base
    ).evidence()

    expect.provisioned(evidence)
    expect.image_absent(evidence, baked_image.driver.reference)
    expect.no_request(driver_registry.log)


@promise(section="5, step 7", unit=UNIT)
@pytest.mark.parametrize("status", [429, 500])
def test_refused_pull_is_tried_again_after_a_pause(
    start_pulling: StartPulling, driver_registry: Registry, status: int
) -> None:
    """When many nodes start, Microsoft's registry answers 429; the second attempt succeeds."""
    driver_registry.disturb_next(PullFault(status=status))

    evidence = start_pulling("refused-once").evidence()

    expect.provisioned(evidence)
    expect.pulls_tried(driver_registry.log, 2)
    expect.pull_answered(driver_registry.log, 1, status=status)
    expect.pulls_paused(driver_registry.log, PAUSE_S)


def test_broken_connection_is_tried_again_after_a_pause(
    start_pulling: StartPulling, driver_registry: Registry
) -> None:
    """A truncated blob fails the attempt once containerd gives up; the second attempt succeeds."""
    driver_registry.disturb_next(PullFault(cut_after_bytes=IN_THE_LAYER))

    evidence = start_pulling("cut", before=[REMOVE_CONTENT]).evidence()

    expect.provisioned(evidence)
    expect.pulls_tried(driver_registry.log, 2)
    first, second = driver_registry.log.pulls
    assert any(each.is_cut for each in first.requests), driver_registry.log.render()
    assert second.blob_bytes > 0, driver_registry.log.render()
    expect.pulls_paused(driver_registry.log, PAUSE_S)


@promise(section="5, step 7", unit=UNIT, any_provisioner=True)
@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        # containerd 1.6 reports the registry's status, and 1.7 reports that credentials are
        # missing.
        (401, "failed to resolve reference"),
        (429, "429 Too Many Requests"),
        (500, "500 Internal Server Error"),
    ],
    ids=["401", "429", "500"],
)
def test_node_gives_up_after_three_refused_pulls(
    start_pulling: StartPulling, driver_registry: Registry, status: int, sentence: str
) -> None:
    """The exit code is 84, and the outcome says what the registry answered."""
    driver_registry.disturb_all(PullFault(status=status))

    evidence = start_pulling("refused").evidence()

    expect.provisioned(evidence, exit_code=START_FAIL)
    expect_run_ended_at(evidence, "pull-driver-image")
    expect.log_line(evidence, sentence)
    expect.pulls_tried(driver_registry.log, 3)
    expect.pull_answered(driver_registry.log, 3, status=status)
    expect.pulls_paused(driver_registry.log, PAUSE_S)


@promise(section="5, step 7", unit=UNIT, any_provisioner=True)
def test_node_gives_up_after_three_pulls_of_a_missing_image(
    start_pulling: StartPulling, driver_registry: Registry
) -> None:
    """The registry lacks the tag. The exit code is 84, and the message names the image."""
    evidence = start_pulling("missing", gpu_image_sha=MISSING_SHA).evidence()

    expect.provisioned(evidence, exit_code=START_FAIL)
    expect_run_ended_at(evidence, "pull-driver-image")
    expect.log_line(evidence, f"-{MISSING_SHA}: not found")
    expect.pulls_tried(driver_registry.log, 3)
    expect.pull_answered(driver_registry.log, 3, status=404)


def test_slow_pull_is_ended_when_the_time_budget_is_used_up(
    start_pulling: StartPulling, driver_registry: Registry
) -> None:
    """The attempt is limited to the rest of the time budget; there is no second attempt."""
    driver_registry.disturb_all(PullFault(bytes_per_s=NEVER_BYTES_PER_S))

    node = start_pulling("slow", before=[REMOVE_CONTENT], retry_budget_s=BUDGET_S)
    evidence = node.evidence()

    expect.provisioned(evidence, exit_code=START_FAIL)
    expect.run_ended_at(evidence, "pull-driver-image")
    took_s = expect.step_of(evidence, "pull-driver-image").duration_s
    assert took_s is not None
    # The node's clock measures this time. The pull may take a little longer than the rest of the
    # budget, since ending the attempt takes time.
    assert took_s < TRY_LIMIT_S, (
        f"The pull was expected to end with the budget of {BUDGET_S} s, but took {took_s:.0f} s."
    )
    expect.log_line(evidence, "The time budget of the node is used up.")
    expect.pulls_tried(driver_registry.log, 1)
    (pull,) = driver_registry.log.pulls
    assert any(each.is_aborted for each in pull.requests), driver_registry.log.render()


@pytest.mark.nightly
def test_slow_pull_is_ended_after_two_minutes_and_tried_again(
    start_pulling: StartPulling, driver_registry: Registry
) -> None:
    """An attempt is limited to 120 s, so that one slow connection does not use up the whole budget."""
    driver_registry.disturb_next(PullFault(bytes_per_s=NEVER_BYTES_PER_S))

    evidence = start_pulling("slow-once", before=[REMOVE_CONTENT]).evidence()

    expect.provisioned(evidence)
    expect.pulls_tried(driver_registry.log, 2)
    first, second = driver_registry.log.pulls
    assert any(each.is_aborted for each in first.requests), driver_registry.log.render()
    # `ctr` requests the manifest some time after its attempt has begun.
    assert second.started_s - first.started_s >= TRY_LIMIT_S, driver_registry.log.render()


def test_image_with_another_tag_is_not_used(
    start_pulling: StartPulling,
    driver_registry: Registry,
    baked_image: Image,
    other_reference: str,
) -> None:
    """An image of the same driver under another tag stays, and the wanted image is pulled."""
    assert baked_image.driver is not None

    evidence = start_pulling("other-tag").evidence()

    expect.provisioned(evidence)
    expect.pulls_tried(driver_registry.log, 1)
    assert {each.host for each in driver_registry.log.requests} == {"mcr.microsoft.com"}
    expect.image_absent(evidence, other_reference)
    expect.image_present(evidence, baked_image.driver.reference)


def test_dot_of_an_image_name_matches_only_a_dot(
    start_pulling: StartPulling,
    driver_registry: Registry,
    baked_image: Image,
    other_reference: str,
) -> None:
    """A name with another character in place of the dot is another image (AgentBaker 8615), and is kept."""
    assert baked_image.driver is not None
    neighbour = other_reference.replace("580.126.09", "580x126x09")
    assert neighbour != other_reference
    tag = ["ctr", "-n", "k8s.io", "images", "tag", baked_image.driver.reference, neighbour]

    evidence = start_pulling("neighbour", before=[tag]).evidence()

    expect.provisioned(evidence)
    expect.pulls_tried(driver_registry.log, 1)
    expect.image_absent(evidence, other_reference)
    expect.image_present(evidence, neighbour)


def test_image_of_a_sovereign_cloud_gets_its_canonical_name(
    start_pulling: StartPulling, driver_registry: Registry, other_reference: str
) -> None:
    """The registry's base URL may end with a slash.

    The image is renamed, and runs under its canonical name.
    """
    base = "mcr.azk8s.cn"

    evidence = start_pulling("sovereign", mcr_repository_base=f"{base}/").evidence()

    expect.provisioned(evidence)
    expect.pulls_tried(driver_registry.log, 1)
    assert {each.host for each in driver_registry.log.requests} == {base}
    assert {each.path for each in driver_registry.log.requests} == {
        f"/v2/aks/aks-gpu-cuda-lts/manifests/580.126.09-{OTHER_SHA}"
    }
    expect.image_absent(evidence, other_reference)
    expect.image_absent(evidence, other_reference.replace("mcr.microsoft.com", base))
