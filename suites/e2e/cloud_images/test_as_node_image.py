"""The tests of nodes pass with a cloud image, named by its path, as the node image of the run."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from harness.cloudinit import CloudInitStatus
from harness.lab import saved_states
from harness.plugin.select import requirements
from harness.provisioning.command import LocalRunner
from suites.e2e.inner import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

    from harness.fixtures.saved_states import CloneState
    from harness.image import Image
    from harness.lab import Lab
    from harness.settings import Settings

#: Tests of what a boot decides with and without a GPU, of a bake, and of what clones promise.
_NODE_TESTS = (
    "test_boot.py::test_baked_kernel_takes_the_fast_path",
    "test_boot.py::test_another_kernel_gets_a_full_build",
    "test_boot.py::test_node_without_a_gpu_loses_the_baked_driver",
    "test_bake.py",
    "clones/test_clones.py",
)
_PYTEST_KVM_S = 300.0


@pytest.fixture(scope="session")
def path(cloud_like: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a cloud image that looks like the output of an image pipeline."""
    path = tmp_path_factory.mktemp("out") / "our-node.qcow2"
    path.symlink_to(cloud_like.disk)
    return path


@pytest.fixture(scope="session")
def as_node(lab: Lab, path: Path, settings: Settings) -> Image:
    """Return the node image that the harness makes of the cloud image."""
    with requirements(settings):
        return lab.node_image(str(path))


@pytest.mark.nightly
def test_node_tests_pass_with_a_cloud_image_given_by_its_path(
    lab: Lab, path: Path, as_node: Image
) -> None:
    """Tests of the fast path, a full build, a node without a GPU, a bake and clones run and pass."""
    assert as_node.kernels
    tests = [str(REPOSITORY / "suites/e2e" / test) for test in _NODE_TESTS]

    result = LocalRunner().run(
        [
            *(sys.executable, "-m", "pytest", *tests, f"--rootdir={REPOSITORY}"),
            *("-p", "no:cacheprovider", "-n", "0", "-rA", f"--image={path}"),
            f"--accelerator={lab.accelerator.accelerator.accel}",
        ],
        timeout_s=_PYTEST_KVM_S * lab.patience,
    )

    assert result.exit_code == 0, result.render()
    passed = re.findall(r"^PASSED (\S+)", result.stdout, re.MULTILINE)
    assert {name.partition("::")[2] for name in passed} >= {
        f"test_baked_kernel_takes_the_fast_path[{as_node.name}]",
        f"test_another_kernel_gets_a_full_build[{as_node.name}]",
        f"test_node_without_a_gpu_loses_the_baked_driver[{as_node.name}]",
    }
    assert "skipped" not in result.stdout


@pytest.mark.nightly
def test_clone_gets_its_host_name_and_its_network_from_the_cloud_init_of_its_image(
    clone: CloneState, as_node: Image, cloud_like: Image
) -> None:
    """The kernel got its command line from the boot loader; this boot wrote the netplan file."""
    machine = clone(saved_states.cloud_init_done(saved_states.booted(as_node)), hostname="ours")
    guest = machine.guest

    assert guest.output_of("hostname") == "ours"
    assert guest.output_of("uname", "-r") == cloud_like.newest_kernel.version
    assert "root=LABEL=node-root ro" in guest.output_of("cat", "/proc/cmdline")
    assert guest.cloud_init_report().status is CloudInitStatus.DONE
    assert guest.run("test", "-e", "/etc/netplan/50-cloud-init.yaml").ok
    assert "10.0.2.15" in guest.output_of("ip", "-4", "address", "show", "dev", "eth0")
