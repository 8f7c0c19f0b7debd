"""Images with a driver that is compiled for one kernel."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError
from harness.image.formats.oci import Entry, archive_of, container_image
from harness.lab import shared_caches
from harness.lab.precompiled import modules_for, precompiled_archive
from harness.lab.registry import DRIVER_ARCHIVE, driver_archive
from suites.unit.lab.builders import an_image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.lab import Lab
    from suites.unit.lab.stage import Stage

DKMS = "/var/lib/dkms/nvidia/580.1/{}/x86_64/module"


def a_driver_archive() -> bytes:
    entries = [
        Entry(path="opt/gpu", is_folder=True, mode=0o755),
        Entry(path="opt/gpu/nvidia-smi", content=b"smi", mode=0o755),
        Entry(path="opt/actions/install.sh", content=b"compile", mode=0o644),
        Entry(path="bin/sh", link="busybox"),
    ]
    image = container_image(entries, entrypoint=["/entrypoint.sh"])
    return archive_of(image, reference="mcr.microsoft.com/gpu:1")


def layer_of(archive: bytes) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """Return the files of the only layer of an image, by their paths."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        blobs = {
            each.name: tar.extractfile(each).read()  # type: ignore[union-attr]
            for each in tar
            if each.isfile()
        }
    index = json.loads(blobs["index.json"])
    manifest = json.loads(blobs[_blob(index["manifests"][0]["digest"])])
    assert json.loads(blobs[_blob(manifest["config"]["digest"])])["config"]["Entrypoint"] == [
        "/entrypoint.sh"
    ]
    with tarfile.open(fileobj=io.BytesIO(blobs[_blob(manifest["layers"][0]["digest"])])) as tar:
        return {
            each.name: (each, opened.read() if (opened := tar.extractfile(each)) else b"")
            for each in tar
            if not each.issym()
        } | {each.name: (each, b"") for each in tar if each.issym()}


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def test_precompiled_image_has_the_modules_of_its_kernel_and_the_content_of_the_driver_image() -> (
    None
):
    modules = {"nvidia.ko": b"module", "nvidia-uvm.ko.xz": b"other module"}

    layer = layer_of(precompiled_archive(a_driver_archive(), "6.1.0-56", modules))

    smi, smi_content = layer["opt/gpu/nvidia-smi"]
    assert (smi_content, smi.mode) == (b"smi", 0o755)
    assert layer["opt/gpu"][0].isdir()
    assert layer["bin/sh"][0].linkname == "busybox"
    install, script = layer["opt/actions/install.sh"]
    assert install.mode == 0o755
    assert script.startswith(b"#!/bin/sh")
    folder = layer["opt/gpu/precompiled"][0]
    assert (folder.isdir(), folder.mode) == (True, 0o755)
    assert layer["opt/gpu/precompiled/kernel"][1] == b"6.1.0-56\n"
    assert layer["opt/gpu/precompiled/nvidia.ko"][1] == b"module"
    assert layer["opt/gpu/precompiled/nvidia-uvm.ko.xz"][1] == b"other module"
    assert "opt/padding" not in layer


@pytest.fixture
def built(stage: Stage) -> Stage:
    """Return a stage whose guest has driver modules for both kernels."""
    stage.agent.answers["find"] = "nvidia.ko.xz\nnvidia-uvm.ko.xz\n"
    for kernel in ("6.1.0-55", "6.1.0-56"):
        for name in ("nvidia", "nvidia-uvm"):
            path = f"{DKMS.format(kernel)}/{name}.ko.xz"
            stage.agent.files[path] = f"{name} for {kernel}".encode()
    return stage


@pytest.mark.parametrize("number", [0, 1], ids=["other kernel", "newest kernel"])
def test_machine_builds_only_modules_that_the_bake_has_not_built(
    lab: Lab, built: Stage, asked: list[dict[str, Any]], number: int
) -> None:
    image = an_image()
    kernel = image.kernels[number]

    modules = modules_for(lab, image, kernel)

    assert modules == {
        f"{name}.ko.xz": f"{name} for {kernel.version}".encode()
        for name in ("nvidia", "nvidia-uvm")
    }
    (clone,) = asked
    assert (clone["name"], clone["state"].name) == ("compiler", "debian-12-booted")
    builds = [argv for argv in built.agent.commands() if argv[0] == "dkms"]
    # The bake has already built the modules for the newest kernel.
    expected = ("dkms", "build", "-k", "6.1.0-55", "nvidia/580.1")
    assert builds == ([expected] if number == 0 else [])
    assert [built.agent.limits_s[argv] for argv in builds] == ([900] if number == 0 else [])
    assert (
        "find",
        DKMS.format(kernel.version),
        "-name",
        "*.ko*",
        "-printf",
        r"%f\n",
    ) in built.agent.commands()
    reads = [each for each in built.noted if each[0] == "read"]
    assert {limit_s for _, _, limit_s in reads} == {180}


def test_compiled_modules_are_cached_by_image_and_kernel(
    lab: Lab, built: Stage, asked: list[dict[str, Any]]
) -> None:
    image = an_image()
    older, newer = image.kernels

    first = modules_for(lab, image, newer)
    again = modules_for(lab, image, newer)
    modules_for(lab, image, older)

    assert again == first
    assert len(asked) == 2
    assert built.agent.files
    kept = sorted(path.name for path in (lab.settings.cache / "driver-images").iterdir())
    assert kept == [
        "debian-12-0000000000000000-6.1.0-55.tar",
        "debian-12-0000000000000000-6.1.0-56.tar",
        "lock",
    ]


@pytest.mark.usefixtures("asked")
def test_driver_is_refused_if_dkms_builds_only_some_of_its_modules(lab: Lab, built: Stage) -> None:
    built.agent.answers["find"] = "nvidia.ko.xz\n"
    image = an_image()

    with pytest.raises(
        HarnessError,
        match=rf"\['nvidia', 'nvidia-uvm'\] for '6\.1\.0-56'.*'{DKMS.format('6.1.0-56')}' has \['nvidia\.ko\.xz'\]",
    ):
        modules_for(lab, image, image.newest_kernel)

    assert not list((lab.settings.cache / "driver-images").glob("*.tar"))


# -- the driver's container image in a node image -------------------------------------------------


def test_driver_image_is_cached_after_it_is_read_from_a_machine(
    lab: Lab, stage: Stage, asked: list[dict[str, Any]]
) -> None:
    stage.agent.files[DRIVER_ARCHIVE] = b"archive"

    assert driver_archive(lab, an_image()) == b"archive"
    assert driver_archive(lab, an_image()) == b"archive"

    (clone,) = asked
    assert (clone["name"], clone["state"].name) == ("driver-image", "debian-12-booted")
    assert ("read", DRIVER_ARCHIVE, 180) in stage.noted
    kept = sorted(path.name for path in (lab.settings.cache / "driver-images").iterdir())
    assert kept == ["debian-12-0000000000000000.tar", "lock"]


@pytest.mark.usefixtures("asked", "stage")
def test_image_without_a_driver_image_is_reported_with_a_remedy(lab: Lab) -> None:
    with pytest.raises(HarnessError, match=rf"'debian-12' .*'{DRIVER_ARCHIVE}'.*`registry.push`"):
        driver_archive(lab, an_image())


def test_driver_image_is_made_under_a_lock(
    lab: Lab, built: Stage, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the lock, two runs would build the image twice and overwrite each other's files."""
    held: list[tuple[Path, float, str]] = []

    @contextlib.contextmanager
    def hold(lock: Path, *, timeout_s: float, what: str) -> Iterator[None]:
        held.append((lock, timeout_s, what))
        before = len(asked)
        yield
        assert len(asked) == before + 1

    monkeypatch.setattr(shared_caches, "hold", hold)
    built.agent.files[DRIVER_ARCHIVE] = b"archive"

    modules_for(lab, an_image(), an_image().newest_kernel)
    driver_archive(lab, an_image())

    lock = lab.settings.cache / "driver-images/lock"
    assert held == [(lock, 900, "a driver image"), (lock, 600, "a driver image")]
