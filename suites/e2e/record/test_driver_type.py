"""The VM size of a node decides which driver the node wants: section 2 of the contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.evidence import RECORD_PATH
from harness.provisioner.gpu_node import CONFIG_PATH, METADATA_CACHE
from suites.e2e.promises import promise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suites.e2e.conftest import StartNode


#: No driver type is configured: a configured type would override the type for the VM size.
NO_TYPE = ["sed", "-i", "/gpu_driver_type/d", CONFIG_PATH]


A10_SIZES = (
    "Standard_NV6ads_A10_v5",
    "Standard_NV12ads_A10_v5",
    "Standard_NV18ads_A10_v5",
    "Standard_NV36ads_A10_v5",
    "Standard_NV36adms_A10_v5",
    "Standard_NV72ads_A10_v5",
    "Standard_NC8ads_A10_v4",
    "Standard_NC16ads_A10_v4",
    "Standard_NC32ads_A10_v4",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A VM size, the driver type of its nodes, and whether the baked driver has this type."""

    size: str
    driver_type: str
    is_baked: bool = False
    recorded: str = "cuda"
    """The kind of the baked driver, from its record."""


ROWS: Mapping[str, Row] = {
    "A10": Row(size="Standard_NV36ads_A10_v5", driver_type="grid"),
    "A10 of another series": Row(size="Standard_NC8ads_A10_v4", driver_type="grid"),
    "size that begins as an A10": Row(
        size="Standard_NV36ads_A10_v55", driver_type="cuda-lts", is_baked=True
    ),
    "RTX PRO 6000": Row(size="Standard_NC128ds_xl_RTXPRO6000BSE_v6", driver_type="grid-v20"),
    "RTX PRO 6000 on a baked GRID": Row(
        size="Standard_NC128ds_xl_RTXPRO6000BSE_v6",
        driver_type="grid-v20",
        is_baked=True,
        recorded="grid",
    ),
    "first NC series": Row(size="Standard_NC24rs", driver_type="cuda", is_baked=True),
    "later NC series": Row(size="Standard_NC24ads_A100_v4", driver_type="cuda-lts", is_baked=True),
    "size in lower case": Row(size="standard_nv12ads_a10_v5", driver_type="grid"),
}


@promise(section="2", unit="suites/unit/provisioning/test_nvidia.py")
@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ROWS.items()])
def test_vm_size_decides_the_driver_type(start_node: StartNode, row: Row) -> None:
    """A baked driver of another type is torn down, and the image of the chosen type is run."""
    kind = ["sed", "-i", f"s/^driver_kind=.*/driver_kind={row.recorded}/", RECORD_PATH]
    node = start_node("size", vm_size=row.size, before=[NO_TYPE, kind], command="plan")

    evidence = node.result()

    expect.provisioned(evidence)
    if row.is_baked:
        expect.decided(evidence, "install-skip-build", reason="ok")
    else:
        expect.decided(evidence, "teardown-install", reason="kind")
    expect.log_line(evidence, f"mcr.microsoft.com/aks/aks-gpu-{row.driver_type}:580.126.09-")


@promise(section="2", unit="suites/unit/provisioning/test_nvidia.py")
def test_each_vm_size_with_an_a10_gets_the_grid_driver(start_node: StartNode) -> None:
    """The baked driver has another type, so a node with any of these sizes removes the baked driver."""
    first, *others = A10_SIZES
    node = start_node("a10", vm_size=first, before=[NO_TYPE], command="plan")
    for size in others:
        node.guest.output_of("sed", "-i", f"s/Standard_N[A-Za-z0-9_]*/{size}/", METADATA_CACHE)
        node.guest.output_of("grep", "-q", size, METADATA_CACHE)
        node.provision("plan")

    evidence = node.evidence()

    assert len(evidence.runs) == len(A10_SIZES)
    for run in evidence.runs:
        expect.decided(evidence, "teardown-install", reason="kind", run=run)
