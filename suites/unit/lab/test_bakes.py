"""What a bake refuses before it boots anything, how it ends badly, and how a disk is handed on."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from harness.cloudinit import GuestFile
from harness.errors import BadInputError, HarnessError
from harness.image import DriverImage
from harness.image.cloud.derived_images import DerivedStore
from harness.image.store import ImageStore
from harness.lab import Lab
from harness.lab.bakes import bake_cloud_image, bake_node, clean_script, write_standalone
from harness.provisioner import EXIT_CODE_PATH, ConfigurationFile, Provisioner
from harness.provisioner.gpu_node import CONFIG_PATH
from harness.provisioner.outcome import OutcomeDeclaration, OutcomeFile
from harness.provisioning.command import CommandResult, LocalRunner
from suites.unit.evidence.folders import EvidenceFolder
from suites.unit.lab.builders import a_cloud_image, a_provisioner, an_image
from suites.unit.lab.fake_vm import limit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.evidence import Evidence
    from harness.image import CloudImage
    from harness.lab.node import NodeRequest
    from harness.provisioning.wait import Deadline


@dataclass
class _BakingNode:
    """A node whose bake ends with `exit_code`, or never where that is None."""

    request: NodeRequest
    exit_code: int | None
    folder: Path
    was_powered_off: bool = False

    def wait_until_provisioned(self, _say: Callable[[str], None]) -> None:
        if self.exit_code is None:
            raise HarnessError("cloud-init did not finish in time.")

    def collect(self, folder: Path) -> Evidence:
        made = EvidenceFolder(folder).outcome(error="no headers for 6.1.0-56")
        return made.file(EXIT_CODE_PATH, f"{self.exit_code}\n").evidence

    def collect_available(self) -> Evidence:
        return EvidenceFolder(self.folder).file("/proc/uptime", "never").evidence

    def power_off(self) -> None:
        self.was_powered_off = True


@pytest.fixture
def bake(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int | None], _BakingNode]:
    """Bake the node image on a machine that ends in this way, and return it."""

    def run(exit_code: int | None) -> _BakingNode:
        nodes: list[_BakingNode] = []

        @contextlib.contextmanager
        def boot(_lab: Lab, request: NodeRequest, **_: object) -> Iterator[_BakingNode]:
            nodes.append(_BakingNode(request, exit_code, tmp_path / "node"))
            yield nodes[-1]

        def make_it(_store: object, *given: object, **_: object) -> None:
            make = given[2]
            assert callable(make)
            make(tmp_path / "made/disk.qcow2")

        monkeypatch.setattr(Lab, "node_image", lambda *_: an_image())
        monkeypatch.setattr(Lab, "boot", boot)
        monkeypatch.setattr(ImageStore, "ensure_derived", make_it)
        bake_node(lab)
        return nodes[0]

    return run


def test_bake_runs_on_the_kernel_that_nodes_do_not_boot(
    bake: Callable[[int | None], _BakingNode], tmp_path: Path
) -> None:
    node = bake(0)

    assert node.request.booted_kernel == an_image().other_kernel
    assert node.was_powered_off
    assert (tmp_path / "made/evidence").is_dir()


def test_bake_that_fails_says_why_and_keeps_its_evidence(
    bake: Callable[[int | None], _BakingNode], tmp_path: Path
) -> None:
    kept = tmp_path / "evidence/bake"

    with pytest.raises(HarnessError) as failure:
        bake(84)

    assert str(failure.value) == (
        "The bake of 'debian-12' ended with 84 (GPU_DRIVERS_START_FAIL): no headers for 6.1.0-56. The evidence is in "
        f"'{kept}'."
    )
    assert any(kept.rglob("*"))


def test_bake_that_never_ends_keeps_available_evidence(
    bake: Callable[[int | None], _BakingNode], tmp_path: Path
) -> None:
    kept = tmp_path / "evidence/bake"

    with pytest.raises(HarnessError, match=rf"did not finish.* The evidence is in '{kept}'"):
        bake(None)

    assert (kept / "files/proc/uptime").read_text() == "never"


@pytest.fixture
def parts_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Mapping[str, str]]:
    """Return what a bake of the cloud image is keyed by, without baking it."""
    asked: list[Mapping[str, str]] = []

    def bake(
        _store: DerivedStore, image: CloudImage, parts: Mapping[str, str], *_: object, **__: object
    ) -> CloudImage:
        asked.append(parts)
        return image

    monkeypatch.setattr(DerivedStore, "bake", bake)

    def bake_it(lab: Lab, *, driver: DriverImage | None = None) -> Mapping[str, str]:
        bake_cloud_image(lab, a_cloud_image(), driver=driver)
        return asked[-1]

    return bake_it


def test_bake_with_another_driver_payload_or_request_is_different(
    lab: Lab, parts_of: Callable[..., Mapping[str, str]]
) -> None:
    driver = DriverImage(repository="mcr.microsoft.com/gpu", version="590.1", sha="2026")
    bakes = [
        parts_of(lab),
        parts_of(lab, driver=driver),
    ]
    provisioner = lab.provisioner
    lab.provisioner = a_provisioner("2" * 64)
    bakes.append(parts_of(lab))
    configuration = ConfigurationFile(path=CONFIG_PATH, bake_values={"gpu_node": True})
    lab.provisioner = replace(provisioner, configuration=configuration)
    bakes.append(parts_of(lab))

    assert [parts for parts in bakes if bakes.count(parts) > 1] == []


def test_bake_has_the_time_of_its_provisioner_and_more_by_the_patience_of_the_host(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits_s: list[int] = []

    def ensure(*_: object, deadline: Deadline, **__: object) -> None:
        limits_s.append(limit_of(deadline))

    monkeypatch.setattr(Lab, "node_image", lambda *_: an_image())
    monkeypatch.setattr(ImageStore, "ensure_derived", ensure)
    monkeypatch.setattr(DerivedStore, "bake", ensure)
    slow = replace(lab, settings=replace(lab.settings, timeout_multiplier=2.0))
    longer = replace(lab.provisioner, timeout_s=lab.provisioner.timeout_s + 100)
    for one, provisioner in ((lab, None), (slow, None), (lab, longer)):
        bake_node(one, provisioner=provisioner)
        bake_cloud_image(one, a_cloud_image(), provisioner=provisioner)

    # Beside the provisioner, a node boots; a cloud image boots for the first time, and is cleaned.
    own_s, factor = lab.provisioner.timeout_s, round(3 * lab.patience)
    of_lab = [round(own_s + extra_s) * factor for extra_s in (60, 180)]
    slower = [2 * limit_s for limit_s in of_lab]
    assert limits_s == [*of_lab, *slower, *(limit_s + 100 * factor for limit_s in of_lab)]


def test_requested_driver_overrides_the_driver_of_the_entry(
    lab: Lab, parts_of: Callable[..., Mapping[str, str]]
) -> None:
    driver = DriverImage(repository="mcr.microsoft.com/gpu", version="590.1", sha="2026")

    assert parts_of(lab, driver=driver)["driver"] == driver.reference
    assert parts_of(lab)["driver"] != driver.reference


def test_bake_without_a_driver_is_refused(lab: Lab) -> None:
    with pytest.raises(BadInputError) as refused:
        bake_cloud_image(lab, a_cloud_image(driver=None))

    assert str(refused.value) == (
        "/cloud-images/disk.qcow2: Nothing says which driver to bake into the image 'noble'; give its "
        "entry the key 'driver', or the command --driver."
    )


def test_existing_path_stays_untouched(tmp_path: Path) -> None:
    (tmp_path / "mine.qcow2").write_text("mine")

    with pytest.raises(BadInputError) as refused:
        write_standalone(a_cloud_image(), tmp_path / "mine.qcow2")

    place = tmp_path / "mine.qcow2"
    assert str(refused.value) == f"{place}: There is such a file already."

    assert (tmp_path / "mine.qcow2").read_text() == "mine"


def test_disk_that_cannot_be_converted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: LocalRunner, argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        return CommandResult(
            argv=tuple(argv),
            exit_code=1,
            stdout="",
            stderr="qemu-img: No space left on device",
            duration_s=timeout_s,
        )

    monkeypatch.setattr(LocalRunner, "run", refuse)

    with pytest.raises(HarnessError, match="No space left on device"):
        write_standalone(a_cloud_image(), tmp_path / "mine.qcow2")

    assert list(tmp_path.iterdir()) == []


MINE = Provisioner(
    name="mine",
    source="/p/mine.yaml",
    run=["/opt/mine/run"],
    files=[
        GuestFile(path="/opt/mine/lib/words.sh", content=b""),
        GuestFile(path="/opt/it's mine", content=b""),
    ],
    folders=["/opt/mine/lib"],
    configuration=ConfigurationFile(path="/etc/mine"),
    outcome=OutcomeDeclaration(file=OutcomeFile(path="/var/lib/mine.json")),
)


def test_baked_cloud_image_keeps_no_files_of_the_harness() -> None:
    lines = clean_script(MINE).splitlines()

    assert any(
        line.startswith("rm -f ")
        and "/etc/mine /var/lib/mine.json '/opt/it'\"'\"'s mine' " in line
        for line in lines
    )
    assert "rm -rf /opt/mine/lib /root/.ssh/authorized_keys" in lines
    # The agent came with the seed too.
    assert any("harness-agent.service" in line for line in lines)


def test_provisioner_without_a_bake_bakes_nothing(lab: Lab) -> None:
    for bake in (
        lambda: bake_node(lab, provisioner=MINE),
        lambda: bake_cloud_image(lab, a_cloud_image(), provisioner=MINE),
    ):
        with pytest.raises(
            BadInputError, match=r"^/p/mine\.yaml: key 'bake': .* declares no command 'bake'"
        ):
            bake()
