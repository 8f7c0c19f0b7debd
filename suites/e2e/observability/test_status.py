"""What the command `status` prints of a node, for the person who looks at it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from suites.e2e.guest_script import shell
from suites.e2e.promises import promise

if TYPE_CHECKING:
    from harness.api import Image
    from suites.e2e.conftest import StartNode

_NOT_BUILT = 'rm -r "/var/lib/dkms/nvidia/580.126.09/$(uname -r)"; dkms status'


@promise(section="3", unit="suites/unit/provisioning/test_status.py", each_change=("added",))
@pytest.mark.parametrize(
    ("change", "state"),
    [
        pytest.param("true", "installed", id="installed"),
        pytest.param(_NOT_BUILT, "added", id="added"),
    ],
)
def test_status_has_the_state_of_the_module_in_dkms(
    start_node: StartNode, baked_image: Image, change: str, state: str
) -> None:
    """One that is only added explains why a baked node builds its driver again."""
    node = start_node("status", gpus=[], before=[shell(change)], command=None)

    printed = node.provision("status").check("status").stdout

    # A line before it says which run this is.
    (entry,) = json.loads(printed[printed.index("{") :])["dkms"]
    kernel = baked_image.newest_kernel.version if state == "installed" else None
    assert (entry["module"], entry["version"]) == ("nvidia", "580.126.09")
    assert (entry["state"], entry["kernel"]) == (state, kernel)
