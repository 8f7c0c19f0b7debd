"""Fixtures that make a cloud image, sign and serve it, then fetch and verify it."""

from __future__ import annotations

import functools
import hashlib
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from harness.image import FirmwareType
from harness.image.catalogue import Recipe, read_recipe
from harness.image.cloud.source import CloudImageRecipe
from harness.image.store import ImageStore
from harness.lab.bakes import bake_cloud_image
from harness.lab.cloud_images import CloudImageBoot
from harness.lab.shared_caches import open_shared_caches
from harness.plugin.select import requirements
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline
from suites.e2e.cloud_images.maker import CloudLikeImageBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.image import CloudImage, CloudImageKernel, Image
    from harness.lab import Lab
    from harness.lab.saved_states import SavedState
    from harness.progress import ProgressEvent
    from harness.settings import Settings

_RECIPE = Path(__file__).parent / "images/cloud-like.yaml"
_BUILD_S = 1500.0
_FETCH_S = 600.0
_GPG_S = 60.0
_CHUNK = 1 << 20

ENTRY = """\
schema: 1
kind: url
description: The image that this run made
folder: {folder}
file: cloud-like.qcow2
sums:
  file: SHA256SUMS
  algorithm: sha256
signature:
  file: SHA256SUMS.gpg
  key: key.asc
  fingerprint: {fingerprint}
driver:
  repository: {driver.repository}
  version: {driver.version}
  sha: "{driver.sha}"
"""


@pytest.fixture(scope="session")
def cloud_like(settings: Settings, announce: Callable[[ProgressEvent], None]) -> Image:
    """Return an image like the images that distributions ship; it is made once for all workers."""
    recipe = read_recipe(_RECIPE)
    assert isinstance(recipe, Recipe)
    with requirements(settings):
        store = ImageStore(
            settings.image_store,
            builder=CloudLikeImageBuilder(),
            source=open_shared_caches(settings).get("images"),
        )
        return store.ensure(recipe, deadline=Deadline.after(_BUILD_S), listener=announce)


class _Handler(SimpleHTTPRequestHandler):
    @override
    def log_message(self, format: str, *args: object) -> None:
        """Write no log of requests."""


@pytest.fixture(scope="session")
def entry(
    cloud_like: Image, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CloudImageRecipe]:
    """Serve the image as a distribution does, and return the catalogue entry for the image.

    The key that signs the list is generated here, and is removed with the folder.
    """
    served = tmp_path_factory.mktemp("server")
    catalogue = tmp_path_factory.mktemp("catalogue")
    (served / "cloud-like.qcow2").symlink_to(cloud_like.disk)
    digest = hashlib.sha256()
    with cloud_like.disk.open("rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    (served / "SHA256SUMS").write_text(f"{digest.hexdigest()} *cloud-like.qcow2\n")
    fingerprint = _sign(served / "SHA256SUMS", key=catalogue / "key.asc")
    handler = functools.partial(_Handler, directory=str(served))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        folder = f"http://127.0.0.1:{server.server_address[1]}/"
        try:
            file = catalogue / "cloud-like.yaml"
            file.write_text(
                ENTRY.format(folder=folder, fingerprint=fingerprint, driver=cloud_like.driver)
            )
            recipe = read_recipe(file)
            assert isinstance(recipe, CloudImageRecipe)
            yield recipe
        finally:
            server.shutdown()
            thread.join()


def _sign(document: Path, *, key: Path) -> str:
    """Sign a document with a new key, write the public key to `key`, and return its fingerprint."""
    home = document.with_name(".gnupg")
    home.mkdir(mode=0o700)

    def gpg(*words: str) -> str:
        return (
            LocalRunner()
            .run(["gpg", "--homedir", str(home), "--batch", "--quiet", *words], timeout_s=_GPG_S)
            .check("Signing the list of images")
            .stdout
        )

    try:
        gpg("--passphrase", "", "--quick-gen-key", "nobody@example.org", "ed25519", "sign", "1d")
        gpg("--armor", "--output", str(key), "--export")
        gpg("--detach-sign", "--output", f"{document}.gpg", str(document))
        listed = gpg("--with-colons", "--fingerprint")
    finally:
        LocalRunner().run(["gpgconf", "--homedir", str(home), "--kill", "all"], timeout_s=_GPG_S)
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr"))


@pytest.fixture(scope="session")
def fetched(
    lab: Lab, entry: CloudImageRecipe, announce: Callable[[ProgressEvent], None]
) -> CloudImage:
    """Return the image after one of the workers has fetched and verified it."""
    return lab.cloud_images.ensure(entry, deadline=Deadline.after(_FETCH_S), listener=announce)


@pytest.fixture(scope="session")
def kernels(lab: Lab, fetched: CloudImage) -> tuple[CloudImageKernel, ...]:
    """Return the kernels extracted from the image's disk; none of them has booted yet."""
    return lab.cloud_image_kernels(fetched)


@pytest.fixture(scope="session")
def booted(lab: Lab, fetched: CloudImage) -> SavedState:
    """Return the saved state after OVMF, the image's boot loader and cloud-init have run."""
    return lab.cloud_image_booted(fetched, CloudImageBoot(firmware=FirmwareType.UEFI))


@pytest.fixture(scope="session")
def baked(lab: Lab, fetched: CloudImage, settings: Settings) -> CloudImage:
    """Return the image with a baked driver, which `harness image bake` has baked."""
    with requirements(settings):
        return bake_cloud_image(lab, fetched)
