"""Opens the shared caches and the image cache of a run, and describes the host for checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from harness.image.store import ImageStore
from harness.lease import hold, make_private_folder
from harness.machine.description.spec import Accelerator
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.artifact_cache import ArtifactSource
    from harness.provisioning.command import Runner
    from harness.settings import Settings
    from harness.shared_store.source import SharedCache

_VERSION_S = 10.0
_CPU_INFO = Path("/proc/cpuinfo")
_MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


def open_shared_caches(settings: Settings) -> Mapping[str, SharedCache]:
    """Return the shared caches of a run by name. A run without a store has no shared caches.

    Raises BadInputError if the store's address is wrong.
    """
    if settings.store is None:
        return {}
    # The import is inside the function, because loading the HTTP client takes longer than starting
    # a clone.
    from harness.shared_store import Address  # noqa: PLC0415
    from harness.shared_store.client import RegistryClient  # noqa: PLC0415
    from harness.shared_store.source import shared_caches  # noqa: PLC0415

    client = RegistryClient(Address.parse(settings.store))
    return shared_caches(client, settings.cache, is_writable=settings.is_store_writable)


def open_image_store(settings: Settings, shared: Mapping[str, ArtifactSource]) -> ImageStore:
    """Return the cache of built images. This cache fetches missing images from the shared caches."""
    return ImageStore(
        settings.image_store,
        accepted_licences=settings.accepted_licences,
        source=shared.get("images"),
    )


def cached_driver_file(
    settings: Settings, name: str, make: Callable[[], bytes], *, timeout_s: float
) -> Path:
    """Return the file `name` in the cache of driver images. Write the result of `make` to a missing file."""
    folder = make_private_folder(settings.cache / "driver-images")
    kept = folder / name
    with hold(folder / "lock", timeout_s=timeout_s, what="a driver image"):
        if not kept.exists():
            # After a failed write, the next call overwrites the temporary file.
            part = folder / f".{name}.part"
            part.write_bytes(make())
            part.replace(kept)
    return kept


def host_facts(
    qemu: str, accelerator: Accelerator, runner: Runner | None = None
) -> dict[str, str]:
    """Describe this host's QEMU and processor for people. The harness itself compares only keys."""
    version = (runner or LocalRunner()).run([qemu, "--version"], timeout_s=_VERSION_S)
    model = _MODEL.search(_CPU_INFO.read_text())
    is_kvm = accelerator is Accelerator.KVM
    return {
        "qemu": version.stdout.partition("\n")[0] or "unknown QEMU",
        "processor": (model[1] if model else "unknown processor") if is_kvm else "any processor",
    }
