"""Makes container images with the driver's modules for one kernel, from the driver's image."""

from __future__ import annotations

import functools
import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from harness.artifact_cache import KEY_DIGITS
from harness.errors import HarnessError
from harness.foreign_json import parse_json
from harness.image.formats.oci import Entry, archive_of, container_image, tar_of
from harness.lab.saved_states import booted
from harness.lab.shared_caches import cached_driver_file
from harness.registry.server import read_image

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.image import Image, Kernel
    from harness.lab import Lab

_INSTALL = Path(__file__).with_name("install-precompiled.sh")
_PAYLOAD = "opt/gpu/precompiled"
_BUILD_S = 900.0
#: The kernel modules of the stand-in driver.
MODULES = {"nvidia", "nvidia-uvm"}


def precompiled_archive(
    driver_archive: bytes, kernel: str, modules: Mapping[str, bytes], *, padding: bytes = b""
) -> bytes:
    """Return a variant of the driver image that installs these modules, compiled for `kernel`.

    `padding` makes the image as large as a real driver.
    """
    entries = {entry.path: entry for entry in _layer_entries(driver_archive)}
    added = [
        Entry(path="opt/actions/install.sh", content=_INSTALL.read_bytes(), mode=0o755),
        Entry(path=_PAYLOAD, is_folder=True, mode=0o755),
        Entry(path=f"{_PAYLOAD}/kernel", content=f"{kernel}\n".encode()),
        *(Entry(path=f"{_PAYLOAD}/{name}", content=modules[name]) for name in modules),
        *([Entry(path="opt/padding", content=padding)] if padding else []),
    ]
    entries |= {entry.path: entry for entry in added}
    image = container_image(entries.values(), entrypoint=["/entrypoint.sh"])
    return archive_of(image, reference="precompiled/driver:any")


def _layer_entries(archive: bytes) -> list[Entry]:
    """Return the content of the only layer of an OCI archive."""
    digest, blobs = read_image(archive)
    layers = parse_json(blobs[digest])["layers"]
    if len(layers) != 1:
        raise HarnessError(
            f"The driver's container image has {len(layers)} layers, but one was expected."
        )
    content = blobs[layers[0]["digest"]]
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return [_entry(tar, member) for member in tar]


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    if member.issym():
        return Entry(path=member.name, link=member.linkname)
    opened = tar.extractfile(member) if member.isfile() else None
    return Entry(
        path=member.name,
        content=b"" if opened is None else opened.read(),
        is_folder=member.isdir(),
        mode=member.mode,
    )


def modules_for(lab: Lab, baked: Image, kernel: Kernel) -> dict[str, bytes]:
    """Return the driver's modules for a kernel of a baked image.

    If the cache has no modules for the image's key, a machine builds them.
    """
    kept = cached_driver_file(
        lab.settings,
        f"{baked.name}-{baked.key[:KEY_DIGITS]}-{kernel.version}.tar",
        functools.partial(_build, lab, baked, kernel),
        timeout_s=_BUILD_S,
    )
    with tarfile.open(kept) as tar:
        entries = [_entry(tar, member) for member in tar]
    return {entry.path: entry.content for entry in entries}


def _build(lab: Lab, baked: Image, kernel: Kernel) -> bytes:
    """Return a tar archive of the modules, which DKMS builds for any installed kernel."""
    assert baked.driver is not None  # noqa: S101 - a baked image has one
    build = f"{baked.driver.version}/{kernel.version}/x86_64"
    with lab.clone(booted(baked), "compiler") as machine:
        folder = f"/var/lib/dkms/nvidia/{build}/module"
        if kernel.version != baked.newest_kernel.version:
            machine.guest.output_of(
                *("dkms", "build", "-k", kernel.version, f"nvidia/{baked.driver.version}"),
                timeout_s=_BUILD_S,
            )
        # DKMS 3.1 also leaves 'Module.symvers' in this folder.
        names = machine.guest.output_of(
            "find", folder, "-name", "*.ko*", "-printf", r"%f\n"
        ).split()
        deadline = machine.deadline(60.0)
        contents = {name: machine.agent.read_bytes(f"{folder}/{name}", deadline) for name in names}
    found = {name.partition(".")[0] for name in contents}
    if found != MODULES:
        raise HarnessError(
            f"DKMS was expected to have built {sorted(MODULES)} for '{kernel.version}', but "
            f"'{folder}' has {sorted(contents)}; look at the driver's dkms.conf."
        )
    return tar_of(Entry(path=name, content=content or b"") for name, content in contents.items())
