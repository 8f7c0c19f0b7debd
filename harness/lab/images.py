"""Finds the images of a lab in caches, and builds, fetches or derives the missing images."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.lab.cloud_images import (
    CloudImageBoot,
    cloud_image_booted,
)
from harness.lab.shared_caches import open_image_store, open_shared_caches
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.artifact_cache import ArtifactSource
    from harness.image import CloudImage, CloudImageKernel
    from harness.image.cloud.derived_images import DerivedStore
    from harness.image.cloud.store import CloudImageStore
    from harness.image.store import ImageStore
    from harness.lab.saved_states import SavedState
    from harness.progress import ProgressListener
    from harness.settings import Settings


_FETCH_S = 3600.0
_KERNELS_S = 600.0


@dataclass(kw_only=True)
class LabImages:
    """The images that machines of one run boot. Images that the caches lack are built or fetched."""

    settings: Settings
    listener: ProgressListener
    store: ImageStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = open_image_store(self.settings, self._shared_caches)

    def close(self) -> None:
        """Release the images that were used."""
        self.store.close()
        for name in ("cloud_images", "derived"):
            if name in self.__dict__:
                getattr(self, name).close()

    @functools.cached_property
    def _shared_caches(self) -> Mapping[str, ArtifactSource]:
        return open_shared_caches(self.settings)

    @functools.cached_property
    def cloud_images(self) -> CloudImageStore:
        """Return the cache of cloud images."""
        from harness.image.cloud.store import CloudImageStore  # noqa: PLC0415 - loads slowly

        return CloudImageStore(self.settings.cloud_image_store)

    @functools.cached_property
    def derived(self) -> DerivedStore:
        """Return the cache of data derived from cloud images."""
        from harness.image.cloud.derived_images import DerivedStore  # noqa: PLC0415 - loads slowly

        return DerivedStore(self.settings.derived_store, source=self._shared_caches.get("derived"))

    def cloud_image(self, name: str) -> CloudImage:
        """Return a distribution's image by its name in the catalogue or by its path.

        The image is fetched if the cache has no copy.
        """
        from harness.image.catalogue import load_catalogue  # noqa: PLC0415 - loads slowly
        from harness.image.cloud.source import (  # noqa: PLC0415
            Algorithm,
            CloudImageRecipe,
            LocalImage,
        )

        source = load_catalogue(*self.settings.image_folders).get(name)
        if isinstance(source, LocalImage):
            from harness.image.cloud.store import open_local  # noqa: PLC0415 - loads slowly

            return open_local(source, Algorithm.SHA256)
        if not isinstance(source, CloudImageRecipe):
            raise BadInputError(
                f"'{name}' is built from a recipe, and has no boot loader; use `node_image`, or name "
                "an image file or an image of kind 'url'.",
                source="cloud_image",
            )
        return self.cloud_images.ensure(
            source, deadline=Deadline.after(_FETCH_S), listener=self.listener
        )

    def cloud_image_kernels(self, image: CloudImage) -> tuple[CloudImageKernel, ...]:
        """Return the kernels of a cloud image's boot menu, the oldest first, for `CloudImageBoot`.

        Kernels that are not in the cache are extracted from the image's disk, without a boot.
        """
        deadline = Deadline.after(_KERNELS_S)
        return self.derived.kernels(image, deadline=deadline, listener=self.listener)

    def cloud_image_booted(
        self, image: CloudImage, boot: CloudImageBoot | None = None
    ) -> SavedState:
        """Return the saved state of a cloud image whose cloud-init has finished, for `clone`."""
        return cloud_image_booted(image, boot=boot)
