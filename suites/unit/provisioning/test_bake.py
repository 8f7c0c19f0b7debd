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


@pytest.mark.parametrize(
    ("driver_type", "tags"),
    [("cuda", ("1-a", "0-a")), ("cuda-lts", ("2-b",)), ("grid", ("3-c", "4-d")), ("gri", ())],
)
def test_listed_tags_of_an_image_are_found_by_the_images_whole_name(
    driver_type: str, tags: tuple[str, ...]
) -> None:
    """The name of one driver type may be a prefix of another."""
    registry = "mcr.microsoft.com/aks/aks-gpu-"
    document = json.loads(
        components(
            component(f"{registry}cuda:*", latestVersion="1-a", previousLatestVersion="0-a"),
            component(f"{registry}cuda-lts:*", latestVersion="2-b"),
            component(f"{registry}grid:*", latestVersion="3-c"),
            component("other.example/aks-gpu-grid:*", previousLatestVersion="4-d"),
        )
    )

    assert listed_tags(document, driver_type) == tags


@pytest.mark.parametrize(
    "entries",
    [
        (component(CUDA_LTS, latestVersion="1-2", previousLatestVersion=TAG),),
        (component("localhost:5000/aks/aks-gpu-cuda-lts:*", latestVersion=TAG),),
        ({"downloadURL": 7}, "x", component(CUDA_LTS, latestVersion=TAG)),
    ],
)
def test_image_on_the_component_list_is_baked(
    simulated: SimulatedNode, invocation: Invocation, entries: tuple[object, ...]
) -> None:
    simulated.files.write(COMPONENTS_PATH, components(*entries))

    assert invocation.run("bake", BAKE) == 0
    assert COMPONENTS_PATH == "/opt/azure/components.json"


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("[]", "no tag of this image"),
        ('{"GPUContainerImages": 7}', "no tag of this image"),
        (
            components(
                component(CUDA_LTS, latestVersion="1-2", previousLatestVersion="3-4"),
                component(CUDA_LTS, latestVersion=""),
                {"downloadURL": CUDA_LTS, "gpuVersion": {"latestVersion": 7}},
                {"downloadURL": CUDA_LTS, "gpuVersion": []},
            ),
            "1-2, 3-4",
        ),
        (
            components(component("mcr.microsoft.com/x:aks-gpu-cuda-lts", latestVersion=TAG)),
            "no tag of this image",
        ),
    ],
)
def test_image_that_is_not_on_the_component_list_is_refused(
    simulated: SimulatedNode, invocation: Invocation, text: str, has: str
) -> None:
    simulated.files.write(COMPONENTS_PATH, text)

    assert invocation.run("bake", BAKE) == 1

    assert invocation.outcome()["error"] == (
        f"The image 'aks-gpu-cuda-lts:{TAG}' is not on the component list '{COMPONENTS_PATH}', "
        f"which has {has}."
    )
    assert [call for call in simulated.calls if call[0] == "ctr"] == []


@pytest.mark.parametrize("text", ["{", "[" * 100000])
def test_component_list_that_is_not_json_fails_the_bake(
    simulated: SimulatedNode, invocation: Invocation, text: str
) -> None:
    simulated.files.write(COMPONENTS_PATH, text)

    assert invocation.run("bake", BAKE) == 1

    error = str(invocation.outcome()["error"])
    assert error.startswith(f"The component list '{COMPONENTS_PATH}' cannot be read: ")


def test_component_list_that_cannot_be_read_is_refused(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.files.make_directory(COMPONENTS_PATH)

    assert invocation.run("bake", BAKE) == 1


def test_error_for_a_bake_without_a_version_mentions_the_field(invocation: Invocation) -> None:
    assert invocation.run("bake", {}) == 2

    assert "'gpu_driver_version' is not set" in str(invocation.outcome()["error"])


def test_requested_driver_type_is_baked(simulated: SimulatedNode, invocation: Invocation) -> None:
    simulated.images = {IMAGE.replace("cuda-lts", "cuda")}

    assert invocation.run("bake", {**BAKE, "gpu_driver_type": "cuda"}) == 0


def test_node_without_kernel_headers_is_baked_for_its_own_kernel(
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


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"driver_version": OTHER_VERSION}, f"built version {OTHER_VERSION}, expected {VERSION}"),
        ({"arch": "aarch64"}, "built for aarch64, expected x86_64"),
        ({"driver_kind": "grid"}, "built a driver of kind grid, expected cuda-lts"),
        ({"arch": ""}, f"left a record '{RECORD_PATH}' that lacks a field"),
    ],
)
def test_bake_fails_if_the_record_does_not_fit_the_image(
    simulated: SimulatedNode, invocation: Invocation, changes: dict[str, str], problem: str
) -> None:
    build = simulated.build

    def build_otherwise(version: str, kernel: str) -> None:
        build(version, kernel)
        fields = {
            "kernel": kernel,
            "driver_version": version,
            "driver_kind": "cuda",
            "arch": "x86_64",
            **changes,
        }
        simulated.files.write(RECORD_PATH, "".join(f"{k}={v}\n" for k, v in fields.items()))

    simulated.build = build_otherwise  # type: ignore[method-assign]

    assert invocation.run("bake", BAKE) == 1

    error = f"Step 'verify-record' failed. The driver image {problem}."
    assert invocation.outcome()["error"] == error
    assert not simulated.files.exists(RECORD_PATH)


@pytest.mark.parametrize(
    ("gone", "problem"),
    [
        (RECORD_PATH, f"left no record '{RECORD_PATH}'"),
        (f"/lib/modules/{KERNEL}/updates", f"left no module for kernel {KERNEL}"),
    ],
)
def test_bake_fails_if_the_build_left_no_record_or_no_module(
    simulated: SimulatedNode, invocation: Invocation, gone: str, problem: str
) -> None:
    build = simulated.build

    def build_less(version: str, kernel: str) -> None:
        build(version, kernel)
        simulated.files.remove(gone)

    simulated.build = build_less  # type: ignore[method-assign]

    assert invocation.run("bake", BAKE) == 1

    error = f"Step 'verify-record' failed. The driver image {problem}."
    assert invocation.outcome()["error"] == error


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


def test_failed_build_is_removed_except_for_its_log(
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


@pytest.mark.parametrize(
    ("arch", "os_release"), [("aarch64", "ID=debian\n"), ("x86_64", "ID=azurelinux\n")]
)
def test_arm64_machine_and_azure_linux_machine_are_not_baked(
    simulated: SimulatedNode, invocation: Invocation, arch: str, os_release: str
) -> None:
    simulated.arch = arch
    simulated.files.write("/etc/os-release", os_release)

    assert invocation.run("bake", BAKE) == 0

    assert invocation.steps() == {}


def test_machine_without_os_release_is_not_baked(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.files.remove("/etc/os-release")

    assert invocation.run("bake", BAKE) == 0

    assert invocation.steps() == {}
