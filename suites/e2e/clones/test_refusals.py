"""The harness refuses a wrong saved state with an error message, and never loads half of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.lab.machine_saving import NONCE_FACT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.lab import Lab
    from harness.lab.saved_states import SavedState
    from harness.machine.checkpoint.store import Checkpoint


pytestmark = pytest.mark.pin_image(reason="the harness refuses, and nothing of it boots")


@pytest.fixture
def begin_from(
    lab: Lab, cloud_init_done: SavedState, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Checkpoint], None]:
    """Return a function that starts a machine of the saved state from another checkpoint."""

    def begin(checkpoint: Checkpoint) -> None:
        monkeypatch.setitem(lab.checkpoint_builder._held, cloud_init_done, checkpoint)
        with lab.clone(cloud_init_done):
            pass

    return begin


def test_truncated_state_is_refused(
    lab: Lab, cloud_init_done: SavedState, begin_from: Callable[[Checkpoint], None], tmp_path: Path
) -> None:
    checkpoint = lab.ensure_checkpoint(cloud_init_done)
    whole = checkpoint.state.read_bytes()
    short = tmp_path / "state"
    short.write_bytes(whole[: len(whole) // 2])

    with pytest.raises(HarnessError, match=f"'{short}'"):
        begin_from(replace(checkpoint, state=short))

    assert list(lab.folder.glob("clone*")) == [], "The clone's folder was expected to go with it."


def test_state_of_another_qemu_is_refused_with_the_message_of_qemu(
    lab: Lab, cloud_init_done: SavedState, begin_from: Callable[[Checkpoint], None], tmp_path: Path
) -> None:
    """The key of a checkpoint already prevents such a load; QEMU itself refuses the state too."""
    checkpoint = lab.ensure_checkpoint(cloud_init_done)
    whole = checkpoint.state.read_bytes()
    start = whole.index(b"pc-q35-")
    foreign = tmp_path / "state"
    foreign.write_bytes(whole[:start] + b"pc-q35-0.0" + whole[start + 10 :])

    with pytest.raises(HarnessError, match="could not carry out 'migrate-incoming'") as caught:
        begin_from(replace(checkpoint, state=foreign))

    assert "pc-q35-0.0" in str(caught.value)


def test_machine_without_the_nonce_in_its_memory_is_refused(
    lab: Lab, cloud_init_done: SavedState, begin_from: Callable[[Checkpoint], None]
) -> None:
    """Such a machine was rebooted, or its memory comes from another checkpoint."""
    checkpoint = lab.ensure_checkpoint(cloud_init_done)

    with pytest.raises(HarnessError, match=r"expected to continue from.*harness checkpoints gc"):
        begin_from(replace(checkpoint, facts={NONCE_FACT: "0" * 64}))
