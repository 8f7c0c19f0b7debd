"""Fixtures that only the e2e suites use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypedDict

import pytest

from harness.cloudinit import GuestFile
from harness.lab.node_request import NodeRequest
from harness.provisioner.gpu_node import NAME
from harness.settings import APPLICATION
from suites.e2e.any_provisioner import config_for
from suites.e2e.inner import OwnCache
from suites.e2e.promises import is_for_any_provisioner, is_nightly
from suites.installed_wheel import installed_wheel  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Unpack

    from harness.api import Argv, BootNode, GpuModel
    from harness.gpu.script import GpuScript
    from harness.image import Image, Kernel
    from harness.lab import Lab
    from harness.lab.node import Node
    from harness.lab.saved_states import SavedState
    from harness.machine.description.spec import HostPort
    from harness.provisioner import Provisioner

#: The folders and files of the longest tests: each makes an image or bakes a driver.
_LONGEST = (
    "cloud_images",
    "test_own_provisioner.py",
    "test_own_kernels.py",
    "existing",
)


#: A containerd configuration that needs no change, so that containerd is not restarted.
_CONTAINERD = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  enable_cdi = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
  BinaryName = "/usr/bin/nvidia-container-runtime"
"""
#: Runs only the probe: DKMS has nothing to build, but takes some seconds to find that out.
_PROBE_ALONE = "[Service]\nExecStartPre=\nExecStart=\nExecStart=/usr/bin/nvidia-modprobe -u -c0\n"
_VALIDATED_FILES = (
    GuestFile(path="/etc/containerd/config.toml", content=_CONTAINERD.encode()),
    GuestFile(
        path="/etc/systemd/system/nvidia-modprobe.service.d/50-probe-alone.conf",
        content=_PROBE_ALONE.encode(),
    ),
)


class NodeFields(TypedDict, total=False):
    """Fields of a `NodeRequest` that a test chooses."""

    image: Image
    kernel: Kernel
    command: str | None
    config: Mapping[str, object]
    gpus: Sequence[GpuModel]
    gpu_scripts: Mapping[str, GpuScript]
    stand_ins: Mapping[str, Mapping[str, str]]
    files: Sequence[GuestFile]
    before: Sequence[Argv]
    tags: Mapping[str, str]
    vm_size: str
    host_ports: Sequence[HostPort]
    derive: Callable[[SavedState], SavedState] | None


class StartNode(Protocol):
    """Starts a node for the running test; the node ends with the test."""

    def __call__(self, name: str, /, **fields: Unpack[NodeFields]) -> Node: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that records dialogues with real tools."""
    parser.addoption(
        "--record-dialogues",
        action="store_true",
        help="store what the tools of a machine do as the recorded dialogues, and compare nothing",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark nightly tests, and add the behaviour that a promise test checks to its report."""
    row = item.get_closest_marker("promise")
    if row is not None:
        title = item.name.partition("[")[0].removeprefix("test_").replace("_", " ")
        item.user_properties.append(("behaviour", f"{row.kwargs['section']}: {title}"))
    if is_nightly(item):
        item.add_marker("nightly")


# This hook runs last, since pytest's own sorting by fixture parameters would undo this order.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest tests, so that no worker runs a long test alone at the end.

    With a foreign provisioner, deselect the tests that only the harness's own provisioner can
    pass.
    """
    if config.getoption("--provisioner") != NAME:
        left_out = [item for item in items if not is_for_any_provisioner(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_for_any_provisioner(item)]
    items.sort(key=lambda item: _rank(item.path))


def _rank(path: Path) -> int:
    """Return the position of a test's file in `_LONGEST`, or a position behind all of them."""
    names = path.parts
    return next((rank for rank, name in enumerate(_LONGEST) if name in names), len(_LONGEST))


@pytest.fixture
def own_cache(lab: Lab, node_image: Image, tmp_path: Path) -> OwnCache:
    assert node_image.disk.exists()
    folder = tmp_path / "cache" / APPLICATION
    folder.mkdir(parents=True)
    (folder / "images").symlink_to(lab.settings.image_store)
    return OwnCache(tmp_path / "cache")


@pytest.fixture
def start_node(
    boot_node: BootNode, baked_image: Image, h100: GpuModel, provisioner: Provisioner
) -> StartNode:
    """Return a function that starts and provisions a prebaked node with a GPU, without cloud-init.

    Cloud-init is not the subject of most tests, and takes longer than the rest of a boot.
    """
    usual = NodeRequest(name="node", image=baked_image, gpus=[h100], skip_cloud_init=True)

    def start(name: str, /, **fields: Unpack[NodeFields]) -> Node:
        fields["config"] = config_for(provisioner, fields.get("config", {}))
        return boot_node(replace(usual, name=name, **fields))

    return start


@pytest.fixture
def start_validated(start_node: StartNode) -> StartNode:
    """Return a function like `start_node`; the node finds that its driver works.

    The node installs and builds nothing and does not restart containerd, which saves time.
    """

    def start(name: str, /, **fields: Unpack[NodeFields]) -> Node:
        fields["config"] = {"config_gpu_driver_if_needed": False, **fields.get("config", {})}
        fields["files"] = (*_VALIDATED_FILES, *fields.get("files", ()))
        return start_node(name, **fields)

    return start
