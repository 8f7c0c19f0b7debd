"""A libvirtd in place of a remote host: it sees none of this host's images and runs."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

import pytest

from harness.lease import leased_folder
from harness.machine.capacity.broker import host_folder
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.private_daemon import private_daemon
from harness.plugin.select import requirements
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline
from suites.e2e.inner import REPOSITORY, pytest_argv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.image import Image
    from harness.lab import Lab
    from harness.machine.libvirt.private_daemon import PrivateDaemon
    from suites.e2e.inner import OwnCache

pytestmark = [
    pytest.mark.vm_driver("qemu", reason="tests of the libvirt driver bring their own libvirtd"),
    pytest.mark.pin_image(reason="what goes to another host is the harness's"),
]

#: More take long under emulation: `HARNESS_REMOTE_TESTS=20 pytest suites/e2e/libvirt/test_remote_host.py`.
TESTS = int(os.environ.get("HARNESS_REMOTE_TESTS", "2"))
_START_S = 60.0
_EACH_S = 300.0

INNER = f"""
import pytest
from harness.lab.node import NodeRequest

@pytest.mark.parametrize("number", range({TESTS}))
def test_node_there_answers(boot_node, node_image, number):
    request = NodeRequest(name=f"remote-{{number}}", image=node_image, command=None)
    node = boot_node(request, wait=False)
    guest = node.machine.guest
    guest.output_of("sh", "-c", f"echo {{number}} >/var/tmp/mine")
    assert guest.output_of("uname", "-r").strip() == node_image.newest_kernel.version
    assert guest.output_of("cat", "/var/tmp/mine").strip() == str(number)
"""


@pytest.fixture
def remote(lab: Lab, own_cache: OwnCache) -> Iterator[PrivateDaemon]:
    """Run a libvirtd that has no part of the caches."""
    with contextlib.ExitStack() as stack:
        with requirements(lab.settings):
            load_libvirt()
            folder = stack.enter_context(leased_folder(host_folder() / "libvirt", prefix="f"))
            daemon = stack.enter_context(
                private_daemon(
                    folder / "d",
                    deadline=Deadline.after(_START_S),
                    hidden=[lab.settings.cache, own_cache.home],
                )
            )
        yield daemon


def test_tests_run_there_and_upload_their_image_once(
    lab: Lab, node_image: Image, remote: PrivateDaemon, own_cache: OwnCache, tmp_path: Path
) -> None:
    storage = tmp_path / "remote"
    inner = tmp_path / "test_inner.py"
    inner.write_text(INNER)

    ran = LocalRunner().run(
        [
            *("env", f"--chdir={REPOSITORY}"),
            *pytest_argv(lab, inner, workers=2),
            "--machine-driver=libvirt",
            f"--machine-uri={remote.remote_uri}",
            f"--machine-storage={storage}",
        ],
        timeout_s=_START_S + TESTS * _EACH_S,
        env=own_cache.environment,
    )

    assert ran.ok, ran.render()
    assert f"{TESTS} passed" in ran.stdout
    contents = sorted(path.name for path in storage.iterdir())
    assert all(re.fullmatch(r"[0-9a-f]{32}\..*", name) for name in contents), contents
    # The disk, the kernel and its initrd, each with its mark: two uploads would have two names.
    assert len(contents) == len({name.partition(".")[0] for name in contents}) * 2 == 6
    sizes = {path.stat().st_size for path in storage.iterdir()}
    assert node_image.disk.stat().st_size in sizes
    listed = LocalRunner().run(
        ["virsh", "-c", remote.uri, "list", "--all", "--name"], timeout_s=20
    )
    assert listed.check("Listing the domains").stdout.split() == []
