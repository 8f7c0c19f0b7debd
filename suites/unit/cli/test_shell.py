"""The state from which `harness shell` starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from harness.cli.shell import saved_state_of
from suites.unit.lab.builders import an_image

if TYPE_CHECKING:
    from harness.image import Image
    from harness.lab import Lab


class LabWithAnImage:
    def node_image(self) -> Image:
        return an_image()


@pytest.mark.parametrize("name", ["booted", "cloud-init-done"])
def test_state_has_a_slot_for_each_gpu(name: str) -> None:
    """A fifth `--gpu` was refused: 'All 4 root ports of machine 'shell' are in use'."""
    lab = cast("Lab", cast("Any", LabWithAnImage()))

    assert saved_state_of(lab, name, 8).slots == 8
    assert saved_state_of(lab, name, 1).slots == 4
