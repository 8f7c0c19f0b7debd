"""Tests each row of the decision table, on a node that is changed to match the row.

`plan` makes the same decision as `boot` and changes nothing, so these nodes need no build.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.evidence import RECORD_PATH
from harness.provisioner.gpu_node import METADATA_CACHE
from suites.e2e.guest_script import shell
from suites.e2e.kernel_module import BAKED_VERSION, INSTALLED, of_other_version, with_other_field
from suites.e2e.promises import promise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.api import GpuModel
    from suites.e2e.conftest import StartNode

RECORD = f"'{RECORD_PATH}'"
UNIT = "suites/unit/provisioning/test_prebake.py"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A change of a prebaked GPU node, and what the node then decides."""

    change: str = ""
    """A shell script that runs before provisioning."""
    config: Mapping[str, object] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    has_gpu: bool = True
    action: str
    reason: str | None


def replaced(key: str, value: str) -> str:
    return f"sed -i 's|^{key}=.*|{key}={value}|' {RECORD}; grep -qx '{key}={value}' {RECORD}"


def corrupt(change: str) -> Row:
    return Row(change=change, action="teardown-install", reason="corrupt")


def skips(change: str = "", **config: object) -> Row:
    return Row(change=change, config=config, action="install-skip-build", reason="ok")


def installs(reason: str, change: str) -> Row:
    return Row(change=change, action="install", reason=reason)


def dkms_prints(edit: str, line: str) -> str:
    """Return a script that makes `dkms` print its list edited by `sed`; the list must have `line`."""
    return (
        "cd /usr/local/sbin; printf '%s\\n' '#!/bin/sh' "
        f'\'/usr/sbin/dkms "$@" | sed "{edit}"\' >dkms; chmod +x dkms; '
        f"./dkms status | grep '^{line}'"
    )


def registered_for(
    *, version: str = BAKED_VERSION, kernel: str = "$(uname -r)", arch: str = "x86_64"
) -> Row:
    """Return a row in which DKMS lists the module for another version, kernel or architecture."""
    change = (
        f"cd /var/lib/dkms/nvidia; mv {BAKED_VERSION} v; mv v/$(uname -r) v/k; "
        f"mv v/k/x86_64 v/k/a; mv v/k/a v/k/{arch}; mv v/k v/{kernel}; mv v {version}; "
        f"rm kernel-*; ln -s {version}/{kernel}/{arch} kernel-{kernel}-{arch}; "
        f'dkms status | grep "nvidia/{version}, {kernel}, {arch}: installed"'
    )
    return installs("dkms", change)


ROWS: Mapping[str, Row] = {
    "untouched": skips(),
    "no record": installs("no_record", f"rm {RECORD}"),
    "record of another kind and kernel": Row(
        change=f"{replaced('driver_kind', 'grid')}; {replaced('kernel', '6.1.0-5-cloud-amd64')}",
        action="teardown-install",
        reason="kind",
    ),
    "record of another version and kernel": Row(
        change=replaced("kernel", "6.1.0-5-cloud-amd64"),
        config={"gpu_driver_version": "580.126.0"},
        action="teardown-install",
        reason="version",
    ),
    "another kind is wanted": Row(
        config={"gpu_driver_type": "grid"}, action="teardown-install", reason="kind"
    ),
    "kind is the family of the wanted type": skips(gpu_driver_type="cuda"),
    "another version is wanted": Row(
        config={"gpu_driver_version": "580.126.0"}, action="teardown-install", reason="version"
    ),
    "version is a prefix of the wanted one": Row(
        config={"gpu_driver_version": "580.126.091"}, action="teardown-install", reason="version"
    ),
    "record of another kernel": installs("kernel", replaced("kernel", "6.1.0-5-cloud-amd64")),
    "kernel is a prefix of the running one": installs(
        "kernel", f"sed -i '/^kernel=/s/.$//' {RECORD}"
    ),
    "record without a kernel": installs("kernel", f"sed -i '/^kernel=/d' {RECORD}"),
    "record of another architecture": installs("arch", replaced("arch", "aarch64")),
    "record without an architecture": installs("arch", f"sed -i '/^arch=/d' {RECORD}"),
    "module file is gone": installs("module", f"rm {INSTALLED}; depmod"),
    "module of another version": installs(
        "module",
        f"{of_other_version(INSTALLED)}; depmod",
    ),
    "module of another kernel": installs(
        "vermagic",
        f"{with_other_field(INSTALLED, 'vermagic=.', 'vermagic=1')}; depmod",
    ),
    "module is not registered with DKMS": installs("dkms", "rm -r /var/lib/dkms/nvidia"),
    "module is registered for another kernel": registered_for(kernel="6.1.0-5-cloud-amd64"),
    "module is registered in another version": registered_for(version="570.86.15"),
    "module is registered for another architecture": registered_for(arch="aarch64"),
    "module of another name is registered": installs(
        "dkms", dkms_prints("s|^nvidia/|nvidia-srv/|", f"nvidia-srv/{BAKED_VERSION}, ")
    ),
    "list of an older DKMS": skips(
        dkms_prints("s|^nvidia/|nvidia, |", f"nvidia, {BAKED_VERSION}, ")
    ),
    "module is built and not installed": installs(
        "dkms",
        'k=$(uname -r); dkms uninstall nvidia/580.126.09 -k "$k"; '
        'mkdir -p "/lib/modules/$k/updates/dkms"; '
        "cp /var/lib/dkms/nvidia/580.126.09/$k/x86_64/module/nvidia* /lib/modules/$k/updates/dkms/; "
        "depmod; dkms status | grep built",
    ),
    "record is empty": corrupt(f": >{RECORD}"),
    "record is cut": corrupt(f"head -c 30 {RECORD} >/run/cut; cp /run/cut {RECORD}"),
    "record is binary": corrupt(f"head -c 4096 /dev/urandom >{RECORD}"),
    "record is a folder": corrupt(f"rm {RECORD}; mkdir {RECORD}"),
    "record is a pipe": corrupt(f"rm {RECORD}; mkfifo {RECORD}"),
    "record has no version": corrupt(f"sed -i '/^driver_version=/d' {RECORD}"),
    "record has an empty kind": corrupt(replaced("driver_kind", "")),
    "record has a blank in its version": corrupt(replaced("driver_version", "580.126.09 ")),
    "record has neither kind nor wanted kind": Row(
        change=replaced("driver_kind", ""),
        config={"gpu_driver_type": "cuda-lts"},
        action="teardown-install",
        reason="corrupt",
    ),
    "record of a newer format": skips(f"sed -i '1i schema=2' {RECORD}; echo gcc=12 >>{RECORD}"),
    "first of two values is used": skips(f"echo driver_version=1.0 >>{RECORD}"),
    "first of two values is empty": corrupt(f"sed -i '1i driver_version=' {RECORD}"),
    "record at another path": skips(
        f"mv {RECORD} /opt/azure/another-marker", gpu_dkms_marker_file="/opt/azure/another-marker"
    ),
    "no record at another path": Row(
        config={"gpu_dkms_marker_file": "/opt/azure/another-marker"},
        action="install",
        reason="no_record",
    ),
    "libraries cannot be linked": installs(
        "module", "cd /usr/local/sbin; printf '#!/bin/sh\\nexit 1\\n' >ldconfig; chmod +x ldconfig"
    ),
    "record is a link to nothing": installs("no_record", f"rm {RECORD}; ln -s /nowhere {RECORD}"),
    # The metadata cache is missing too: only nodes with a GPU need the metadata.
    "no GPU": Row(
        has_gpu=False, change=f"rm -f {METADATA_CACHE}", action="teardown", reason="opted_out"
    ),
    "no GPU and no record": Row(
        has_gpu=False, change=f"rm {RECORD}", action="nothing", reason=None
    ),
    "opted out by its tag": Row(
        tags={"SkipGpuDriverInstall": "true"}, action="teardown", reason="opted_out"
    ),
    "opted out by its tag in mixed case on another system": Row(
        tags={"sKIPgpuDRIVERiNSTALL": "True"},
        change="rm /etc/os-release; echo ID=alpine >/etc/os-release",
        action="teardown",
        reason="opted_out",
    ),
    "opted out with both managed modes on": Row(
        tags={"SkipGpuDriverInstall": "true"},
        config={"enable_managed_gpu": True, "enable_managed_gpu_dra": True},
        action="teardown",
        reason="opted_out",
    ),
    "tag has another value": Row(
        tags={"SkipGpuDriverInstall": "untrue"}, action="install-skip-build", reason="ok"
    ),
    "tag merely contains the name": Row(
        tags={"xSkipGpuDriverInstallY": "true"}, action="install-skip-build", reason="ok"
    ),
}

#: One row for each source of the decision: the record, the module, DKMS and the node.
EACH_CHANGE = (
    "untouched",
    "no record",
    "another version is wanted",
    "record of another kernel",
    "module of another kernel",
    "module is built and not installed",
    "record is empty",
    "record is binary",
    "no GPU",
    "opted out by its tag",
)
#: Another provisioner may query DKMS for one module in place of the whole list.
_LISTS_OF_DKMS = ("module of another name is registered", "list of an older DKMS")


@promise(
    section="3",
    unit=UNIT,
    each_change=EACH_CHANGE,
    any_provisioner=tuple(
        name for name, row in ROWS.items() if not row.config and name not in _LISTS_OF_DKMS
    ),
)
@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ROWS.items()])
def test_plan_of_a_node_depends_on_its_record_and_its_module(
    start_node: StartNode, h100: GpuModel, row: Row
) -> None:
    """A node decides by the first matching row of the table and never aborts."""
    node = start_node(
        "decision",
        gpus=[h100] if row.has_gpu else [],
        config=row.config,
        tags=row.tags,
        before=[shell(row.change)] if row.change else [],
        command="plan",
    )

    evidence = node.result()

    expect.provisioned(evidence)
    expect.decided(evidence, row.action, reason=row.reason)
