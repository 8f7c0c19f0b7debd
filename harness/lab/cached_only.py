"""A lab that makes nothing: if the caches lack an artifact, the lab raises NotCachedError."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NoReturn

from typing_extensions import override

from harness.artifact_cache import KEY_DIGITS
from harness.errors import HarnessError
from harness.image.catalogue import load_catalogue
from harness.image.cloud.source import CloudImageRecipe
from harness.lab import Lab
from harness.progress import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.artifact_cache import ArtifactSource
    from harness.image import CloudImage
    from harness.progress import Progress, ProgressEvent
    from harness.provisioning.wait import Deadline


class NotCachedError(HarnessError):
    """A cache lacks an artifact, or another process is making that artifact."""


def refuse_to_wait(event: ProgressEvent) -> None:
    """Raise NotCachedError if another process makes a needed artifact. Ignore other events."""
    if event.stage is Stage.WAIT:
        raise NotCachedError(event.message)


class _NothingToFetch:
    """A source without artifacts: it raises NotCachedError for every request."""

    def fetch(
        self,
        name: str,
        into: Path,
        *,
        inputs: Mapping[str, object],
        progress: Progress,
        deadline: Deadline,
    ) -> NoReturn:
        del into, inputs, progress, deadline
        raise NotCachedError(f"'{name[: -KEY_DIGITS - 1]}' is not cached")

    def offer(self, folder: Path, *, progress: Progress) -> None:
        """Do nothing: this lab makes no artifacts."""


class CachedOnlyLab(Lab):
    """A lab that raises NotCachedError instead of building, fetching, baking or saving anything.

    Open the lab with `refuse_to_wait` as its listener.
    """

    @override
    @functools.cached_property
    def _shared_caches(self) -> Mapping[str, ArtifactSource]:
        return dict.fromkeys(("images", "derived", "checkpoints"), _NothingToFetch())

    @override
    def cloud_image(self, name: str) -> CloudImage:
        source = load_catalogue(*self.settings.image_folders).get(name)
        if not isinstance(source, CloudImageRecipe):
            return super().cloud_image(name)
        image = self.cloud_images.find(source)
        if image is None:
            raise NotCachedError(f"'{name}' has not been downloaded")
        return image
