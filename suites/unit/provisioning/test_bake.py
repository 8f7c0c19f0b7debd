"""A driver baked into an image."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.bake import COMPONENTS_PATH, listed_tags
from harness.provisioning.node_files import NodeFiles, UnreadableFileError
from harness.provisioning.prebake import read_record

from .fakes import (
    IMAGE,
    KERNEL,
    OTHER_KERNEL,
    OTHER_VERSION,
    RECORD_PATH,
    SHA,
    VERSION,
    Invocation,
    write_record,
)
from .simulation import DKMS, SimulatedNode, module_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.provisioning.command import CommandResult

BAKE = {
    "gpu_driver_version": VERSION,
    "gpu_image_sha": SHA,
    "feature_flags": "X,NVIDIA_CUDA_PREBAKE",
}


@pytest.fixture
def simulated(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(tmp_path, has_gpu=False, kernel=OTHER_KERNEL)


@pytest.fixture
def invocation(simulated: SimulatedNode) -> Invocation:
    return Invocation(simulated.top, simulated)


def test_bake_builds_for_the_newest_kernel_and_keeps_the_image(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    assert invocation.run("bake", BAKE) == 0

    assert simulated.files.exists(module_path(KERNEL))
    assert simulated.images == {IMAGE}
    assert invocation.outcome()["record"] == {
        "kernel": KERNEL,
        "driver_version": VERSION,
        "driver_kind": "cuda",
        "arch": "x86_64",
    }
    assert f"  - nvidia-cuda-driver-prebaked={VERSION}-{SHA} (kernel {KERNEL})" in invocation.log()


def test_bake_without_the_prebake_flag_fetches_the_image_and_builds_nothing(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    flags = "XNVIDIA_CUDA_PREBAKE,NVIDIA_CUDA_PREBAKE_NOT"

    assert invocation.run("bake", {**BAKE, "feature_flags": flags}) == 0

    assert list(invocation.steps()) == ["fetch-driver-image", "list-driver-image"]
    assert not simulated.files.exists(RECORD_PATH)


def components(*entries: object) -> str:
    return json.dumps({"GPUContainerImages": list(entries)})


def component(url: str, **versions: str) -> dict[str, object]:
    return {"downloadURL": url, "gpuVersion": versions}


CUDA_LTS = "mcr.microsoft.com/aks/aks-gpu-cuda-lts:*"
TAG = f"{VERSION}-{SHA}"


def test_tags_in_the_component_list_are_found_by_the_whole_image_name() -> None:
    """The name of one driver type may be a prefix of another type's name."""
    registry = "mcr.microsoft.com/aks/aks-gpu-"
    document = json.loads(
        components(
            component(f"{registry}cuda:*", latestVersion="1-a", previousLatestVersion="0-a"),
            component(f"{registry}cuda-lts:*", latestVersion="2-b"),
            component(f"{registry}grid:*", latestVersion="3-c"),
            component("other.example/aks-gpu-grid:*", previousLatestVersion="4-d"),
        )
    )
    rows: dict[str, tuple[str, ...]] = {
        "cuda": ("1-a", "0-a"),
        "cuda-lts": ("2-b",),
        "grid": ("3-c", "4-d"),
        "gri": (),
    }

    assert {driver_type: listed_tags(document, driver_type) for driver_type in rows} == rows


def test_image_on_the_component_list_is_baked(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.files.write(
        "/opt/azure/components.json",
        components(
            {"downloadURL": 7},
            "x",
            component(
                "localhost:5000/aks/aks-gpu-cuda-lts:*",
                latestVersion="1-2",
                previousLatestVersion=TAG,
            ),
        ),
    )

    assert invocation.run("bake", BAKE) == 0
    assert COMPONENTS_PATH == "/opt/azure/components.json"


def test_image_that_is_not_on_the_component_list_is_refused(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    rows = {
        "[]": "no tag of this image",
        '{"GPUContainerImages": 7}': "no tag of this image",
        components(
            component(CUDA_LTS, latestVersion="1-2", previousLatestVersion="3-4"),
            component(CUDA_LTS, latestVersion=""),
            {"downloadURL": CUDA_LTS, "gpuVersion": {"latestVersion": 7}},
            {"downloadURL": CUDA_LTS, "gpuVersion": []},
        ): "1-2, 3-4",
        components(component("mcr.microsoft.com/x:aks-gpu-cuda-lts", latestVersion=TAG)): (
            "no tag of this image"
        ),
    }
    for text, has in rows.items():
        simulated.files.write(COMPONENTS_PATH, text)

        assert invocation.run("bake", BAKE) == 1

        assert invocation.outcome()["error"] == (
            f"The image 'aks-gpu-cuda-lts:{TAG}' is not on the component list "
            f"'{COMPONENTS_PATH}', which has {has}."
        )
    assert [call for call in simulated.calls if call[0] == "ctr"] == []


def test_component_list_that_cannot_be_read_fails_the_bake(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    for text in ("{", "[" * 100000, None):
        simulated.files.remove(COMPONENTS_PATH)
        if text is None:
            simulated.files.make_directory(COMPONENTS_PATH)
        else:
            simulated.files.write(COMPONENTS_PATH, text)

        assert invocation.run("bake", BAKE) == 1

        error = str(invocation.outcome()["error"])
        assert error.startswith(f"The component list '{COMPONENTS_PATH}' cannot be read: ")


def test_error_for_a_bake_without_a_version_mentions_the_field(invocation: Invocation) -> None:
    assert invocation.run("bake", {}) == 2

    assert "'gpu_driver_version' is not set" in str(invocation.outcome()["error"])


def test_bake_uses_the_requested_driver_type(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.images = {IMAGE.replace("cuda-lts", "cuda")}

    assert invocation.run("bake", {**BAKE, "gpu_driver_type": "cuda"}) == 0


def test_node_without_kernel_headers_is_baked_for_the_running_kernel(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.files.remove("/lib/modules")
    original = simulated._entry_point

    def build_for_the_running_kernel(
        call: tuple[str, ...], name: str, action: str
    ) -> CommandResult:
        assert action == "build-only"
        original(call, name, "install")
        return simulated.answer(call)

    simulated._entry_point = build_for_the_running_kernel  # type: ignore[method-assign]

    assert invocation.run("bake", BAKE) == 0

    assert invocation.outcome()["kernel"] == OTHER_KERNEL
    assert f"  - nvidia-cuda-driver-prebaked={TAG} (kernel {OTHER_KERNEL})" in invocation.log()


def test_bake_fails_if_the_record_or_the_module_does_not_fit_the_image(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    build = simulated.build
    rows: dict[str, Callable[[], object]] = {
        f"built version {OTHER_VERSION}, expected {VERSION}": lambda: write_record(
            simulated.files, version=OTHER_VERSION
        ),
        "built for aarch64, expected x86_64": lambda: write_record(
            simulated.files, arch="aarch64"
        ),
        "built a driver of kind grid, expected cuda-lts": lambda: write_record(
            simulated.files, kind="grid"
        ),
        f"left a record '{RECORD_PATH}' that lacks a field": lambda: write_record(
            simulated.files, arch=""
        ),
        f"left no record '{RECORD_PATH}'": lambda: simulated.files.remove(RECORD_PATH),
        f"left no module for kernel {KERNEL}": lambda: simulated.files.remove(
            f"/lib/modules/{KERNEL}/updates"
        ),
    }
    for problem, change in rows.items():

        def build_otherwise(
            version: str, kernel: str, change: Callable[[], object] = change
        ) -> None:
            build(version, kernel)
            change()

        simulated.build = build_otherwise  # type: ignore[method-assign]

        assert invocation.run("bake", BAKE) == 1

        error = f"Step 'verify-record' failed. The driver image {problem}."
        assert invocation.outcome()["error"] == error
        assert not simulated.files.exists(RECORD_PATH)


def fail_after_building_half(simulated: SimulatedNode) -> None:
    """Make the driver image remove the record, write the DKMS tree of two versions, and fail."""

    def build(call: tuple[str, ...], name: str, action: str) -> CommandResult:
        assert (name, action) == (IMAGE, "build-only")
        simulated.files.remove(RECORD_PATH)
        for version in (OTHER_VERSION, VERSION):
            simulated.files.write(f"{DKMS}/{version}/build/make.log", f"CC of {version}\n")
        simulated.files.write(f"{DKMS}/{VERSION}/source/dkms.conf", "")
        return simulated._fail(call, "make: *** [nvidia.o] Error 1")

    simulated._entry_point = build  # type: ignore[method-assign]


def test_failed_bake_removes_the_build_but_not_the_build_log(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    fail_after_building_half(simulated)
    simulated.files.write("/opt/gpu/config.sh", "")

    assert invocation.run("bake", BAKE) == 1

    assert not simulated.files.exists(DKMS)
    assert not simulated.files.exists(RECORD_PATH)
    assert simulated.files.exists("/opt/gpu/config.sh")
    for version in (OTHER_VERSION, VERSION):
        kept = simulated.files.read(f"/var/log/gpu-node/failed-bake/make-{version}.log")
        assert kept == f"CC of {version}\n"
    assert "status=cleaned" in invocation.prebake_lines()[-1]
    assert len([call for call in simulated.calls if call[-1] == "build-only"]) == 3


def test_failed_build_is_removed_although_one_of_its_logs_cannot_be_read(
    simulated: SimulatedNode, invocation: Invocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_after_building_half(simulated)
    content = NodeFiles._content

    def refuse(files: NodeFiles, path: str, limit: int) -> bytes | None:
        if path == f"{DKMS}/{OTHER_VERSION}/build/make.log":
            raise UnreadableFileError(f"'{path}' is a FIFO.")
        return content(files, path, limit)

    monkeypatch.setattr(NodeFiles, "_content", refuse)

    assert invocation.run("bake", BAKE) == 1

    assert "make: *** [nvidia.o] Error 1" in str(invocation.outcome()["error"])
    assert not simulated.files.exists(DKMS)
    kept = simulated.files.read(f"/var/log/gpu-node/failed-bake/make-{VERSION}.log")
    assert kept == f"CC of {VERSION}\n"


def test_interrupted_build_is_removed_with_its_container(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    fail_after_building_half(simulated)
    fail = simulated._entry_point

    def interrupt(call: tuple[str, ...], name: str, action: str) -> CommandResult:
        fail(call, name, action)
        raise KeyboardInterrupt

    simulated._entry_point = interrupt  # type: ignore[method-assign]

    assert invocation.run("bake", BAKE) == 143

    assert simulated.containers == set()
    assert not simulated.files.exists(DKMS)
    assert not simulated.files.exists(RECORD_PATH)


def test_failed_build_whose_removal_is_interrupted_leaves_a_corrupt_record(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """A boot would trust a complete record of a driver that is partly removed."""
    build, run = simulated.build, simulated.run

    def build_for_another_processor(version: str, kernel: str) -> None:
        build(version, kernel)
        write_record(simulated.files, arch="aarch64")

    def interrupt(argv: tuple[str, ...], **options: object) -> CommandResult:
        if argv[0] == "depmod":
            raise KeyboardInterrupt
        return run(argv, **options)  # type: ignore[arg-type]

    simulated.build = build_for_another_processor  # type: ignore[method-assign]
    simulated.run = interrupt  # type: ignore[method-assign, assignment]

    assert invocation.run("bake", BAKE) == 143

    record = read_record(simulated.files, RECORD_PATH)
    assert record is not None
    assert record.is_corrupt


def test_failed_build_is_removed_although_its_log_cannot_be_kept(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    fail_after_building_half(simulated)
    simulated.files.write("/var/log/gpu-node", "a file where a folder should be")

    assert invocation.run("bake", BAKE) == 1

    assert not simulated.files.exists(DKMS)
    source = f"{DKMS}/{VERSION}/build/make.log"
    assert any(line.startswith(f"'{source}' could not be copied: ") for line in invocation.log())


def test_failure_to_write_the_record_of_a_failed_build_is_logged(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    fail_after_building_half(simulated)
    fail = simulated._entry_point

    def block(call: tuple[str, ...], name: str, action: str) -> CommandResult:
        result = fail(call, name, action)
        simulated.files.remove(str(PurePosixPath(RECORD_PATH).parent))
        simulated.files.write(str(PurePosixPath(RECORD_PATH).parent), "a file")
        return result

    simulated._entry_point = block  # type: ignore[method-assign]

    assert invocation.run("bake", BAKE) == 1

    assert any(
        line.startswith(f"'{RECORD_PATH}' could not be written: ") for line in invocation.log()
    )


def test_bake_that_fails_before_it_builds_keeps_the_earlier_record_and_module(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.failing["apt-get install"] = simulated._fail((), "E: no network")

    assert invocation.run("bake", BAKE) == 1

    assert simulated.files.exists(RECORD_PATH)
    assert simulated.files.exists(module_path(KERNEL))


def test_bake_that_cannot_remove_old_staged_files_leaves_no_record(
    simulated: SimulatedNode, invocation: Invocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = NodeFiles.remove

    def refuse(files: NodeFiles, path: str) -> None:
        if path.endswith("/lib64"):
            raise OSError("busy")
        remove(files, path)

    monkeypatch.setattr(NodeFiles, "remove", refuse)

    assert invocation.run("bake", BAKE) == 1

    assert not simulated.files.exists(RECORD_PATH)


def test_machine_that_is_not_of_the_debian_family_or_is_arm64_is_not_baked(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    for arch, os_release in (
        ("aarch64", "ID=debian\n"),
        ("x86_64", "ID=azurelinux\n"),
        ("x86_64", None),
    ):
        simulated.arch = arch
        simulated.files.remove("/etc/os-release")
        if os_release is not None:
            simulated.files.write("/etc/os-release", os_release)

        assert invocation.run("bake", BAKE) == 0

        assert invocation.steps() == {}, (arch, os_release)
