"""A lab that uses only cached artifacts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pytest

from harness.artifact_cache import DamagedError
from harness.artifact_cache.store import ArtifactStore
from harness.lab.cached_only import CachedOnlyLab, NotCachedError, refuse_to_wait
from harness.progress import Progress, ProgressEvent, Stage
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from pathlib import Path


def _must_not_be_made(*_: object) -> NoReturn:
    raise AssertionError("A lab that only reads its caches must not make an artifact.")


def _missing() -> NoReturn:
    raise DamagedError("The artifact is missing.")


def test_cached_only_lab_raises_an_error_for_a_missing_artifact(tmp_path: Path) -> None:
    for number, cache in enumerate(("images", "derived", "checkpoints")):
        folder = tmp_path / str(number)
        lab = CachedOnlyLab.__new__(CachedOnlyLab)
        store = ArtifactStore(
            folder, noun="image", clean=lambda _work: None, source=lab._shared_caches[cache]
        )

        with pytest.raises(NotCachedError, match=r"^'debian-12' is not cached$"):
            store.ensure(
                folder / "debian-12-0123456789abcdef",
                opened=_missing,
                fill=_must_not_be_made,
                progress=Progress("debian-12", refuse_to_wait),
                deadline=Deadline.after(1),
            )

        assert store.published() == [], cache


def test_lab_does_not_wait_for_an_artifact_that_another_process_makes() -> None:
    refuse_to_wait(ProgressEvent(subject="debian-12", stage=Stage.CHECK, message="looking"))

    with pytest.raises(NotCachedError, match="waiting for process 12"):
        refuse_to_wait(
            ProgressEvent(subject="debian-12", stage=Stage.WAIT, message="waiting for process 12")
        )
