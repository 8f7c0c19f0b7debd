"""A libvirt URI that does not work raises an error of one sentence, which has the remedy."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.connection import Connection
from harness.plugin.select import requirements
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from harness.machine.libvirt.private_daemon import PrivateDaemon
    from harness.settings import Settings

REPOSITORY = Path(__file__).parents[3]
PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def _binding(settings: Settings) -> None:
    with requirements(settings):
        load_libvirt()


def test_uri_that_does_not_answer_is_refused_with_the_remedy() -> None:
    with pytest.raises(RequirementError, match=r"No libvirtd answers at .* start it by"):
        Connection.open(
            "qemu+unix:///system?socket=/nonexistent/sock", deadline=Deadline.after(PATIENCE_S)
        )


# The program imports all modules before it changes to another user, who may not be able to read them.
_STRANGER = """\
import os, sys
from harness.errors import RequirementError
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.connection import Connection
from harness.provisioning.wait import Deadline
load_libvirt()
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
os.environ["LOGNAME"] = "stranger"
try:
    Connection.open(sys.argv[1], deadline=Deadline.after(30))
except RequirementError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without permission")
def test_error_for_a_user_without_permission_mentions_the_group_to_join(
    daemon: PrivateDaemon,
) -> None:
    answer = LocalRunner().run(
        ["env", f"--chdir={REPOSITORY}", sys.executable, "-c", _STRANGER, daemon.uri],
        timeout_s=PATIENCE_S,
    )

    assert "User 'stranger' may not use libvirt at" in answer.stdout, answer.render()
    assert "Permission denied" in answer.stdout
    assert "`usermod --append --groups libvirt stranger`" in answer.stdout
