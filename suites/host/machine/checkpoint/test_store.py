"""Different checkpoints in one store are made at the same time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from suites.unit.machine.checkpoint.builders import Cache

if TYPE_CHECKING:
    from pathlib import Path

    from harness.machine.checkpoint.store import Checkpoint, CheckpointPlace


def test_different_checkpoints_can_be_made_simultaneously(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=10)
    got: list[Checkpoint] = []

    def meet(_place: CheckpointPlace) -> None:
        both.wait()

    def take(image: str) -> None:
        cache = Cache(tmp_path)
        cache.meanwhile = meet
        with cache.use(parts={"image": image}) as checkpoint:
            got.append(checkpoint)

    threads = [threading.Thread(target=take, args=(image,)) for image in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len({checkpoint.folder for checkpoint in got}) == 2
