"""Measures the cost of a suite of a hundred tests, each on its own pristine machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.fixtures.saved_states import CloneState
    from harness.lab.saved_states import SavedState


pytestmark = pytest.mark.pin_image(reason="what a test costs is the harness's")


@pytest.mark.parametrize(
    "number",
    [
        # Twenty machines are enough for a run of CI.
        pytest.param(
            number, id=f"machine{number:02}", marks=[pytest.mark.nightly] * (number >= 20)
        )
        for number in range(100)
    ],
)
def test_every_test_has_a_pristine_machine(
    clone: CloneState, cloud_init_done: SavedState, number: int
) -> None:
    """Each test leaves a file, and no test finds the file of another test."""
    guest = clone(cloud_init_done).guest

    found = guest.output_of("ls", "-A", "/srv")
    guest.write_text(f"/srv/{number}", "here")

    assert found == ""
