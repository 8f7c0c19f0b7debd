"""How a node detects the CDI support of its containerd, whatever configuration a user wrote.

containerd 1.6 (Debian 12) does not support CDI. containerd 1.7 (Debian 13) supports CDI, switched
off by default. `status` prints what a node has detected, and changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness.api import GuestFile
from suites.e2e.promises import promise
from suites.e2e.runtime.containerd import CONFIG, CRI, containerd_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.lab.node import Node
    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_cdi.py"

#: A program that comes before the real containerd on PATH and replaces some of its commands.
BROKEN_DUMP = '[ "$*" != "config dump" ] || exit 1'
BROKEN_VERSION = (
    '[ "$*" != --version ] || { echo "containerd github.com/containerd/containerd"; exit; }'
)


#: The output of containerd 2.4, in which CDI is always on; no tested distribution has this
#: version.
ANSWERS_OF_2_4 = (
    '[ "$*" != --version ] || { echo "containerd github.com/containerd/containerd/v2 v2.4.0 1"; exit; }',
    '[ "$*" != "config dump" ] || { echo "version = 4"; exit; }',
)
#: The output of a containerd without the key `enable_cdi`; only its CDI folders show CDI support.
DUMP_WITH_FOLDERS = (
    '[ "$*" != "config dump" ] || { echo "version = 3"; '
    "echo \"[plugins.'io.containerd.cri.v1.runtime']\"; echo \"cdi_spec_dirs = ['/etc/cdi']\"; exit; }"
)


def wrapped(*scripts: str) -> GuestFile:
    text = "\n".join(["#!/bin/sh", *scripts, 'exec /usr/bin/containerd "$@"', ""])
    return GuestFile(path="/usr/local/sbin/containerd", content=text.encode(), mode=0o755)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A user's changes on the node, and the CDI support that containerd 1.6 and 1.7 then have."""

    config: str | None = None
    files: tuple[GuestFile, ...] = ()
    support: tuple[str, str]


ROWS: Mapping[str, Row] = {
    "as it comes": Row(support=("absent", "capable")),
    "CDI is on": Row(
        config=f"version = 2\n{CRI}\nenable_cdi = true\n", support=("absent", "native")
    ),
    "CDI is off": Row(
        config=f"version = 2\n{CRI}\nenable_cdi = false\n", support=("absent", "capable")
    ),
    "CDI is on in an imported file": Row(
        config='version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n',
        files=(
            GuestFile(
                path="/etc/containerd/conf.d/cdi.toml",
                content=f"version = 2\n{CRI}\nenable_cdi = true\n".encode(),
            ),
        ),
        support=("absent", "native"),
    ),
    "only a comment names CDI": Row(
        config=f"version = 2\n{CRI}\n# enable_cdi = true\n", support=("absent", "capable")
    ),
    "another plugin's table": Row(
        config='version = 2\n[plugins."io.containerd.example.v1.mine"]\nenable_cdi = true\n',
        support=("absent", "capable"),
    ),
    "format of containerd 1.0": Row(
        config="[plugins.cri]\nenable_cdi = true\n", support=("absent", "native")
    ),
    "another root": Row(
        config='version = 2\nroot = "/srv/containerd"\nstate = "/run/containerd"\n',
        support=("absent", "capable"),
    ),
    "dump fails": Row(files=(wrapped(BROKEN_DUMP),), support=("absent", "capable")),
    "dump fails and the version is unknown": Row(
        files=(wrapped(BROKEN_DUMP, BROKEN_VERSION),), support=("absent", "absent")
    ),
    "containerd 2.4 without the key": Row(
        files=(wrapped(*ANSWERS_OF_2_4),), support=("native", "native")
    ),
    "folders of CDI without the key, and the version is unknown": Row(
        files=(wrapped(DUMP_WITH_FOLDERS, BROKEN_VERSION),), support=("native", "native")
    ),
    "version is unknown": Row(files=(wrapped(BROKEN_VERSION),), support=("absent", "capable")),
}


#: The environment of the container toolkit.
NATIVE_TOOLKIT = {
    "CDI_ENABLED": "true",
    "NVIDIA_RUNTIME_SET_AS_DEFAULT": "false",
    "NVIDIA_CONTAINER_RUNTIME_MODE": "cdi",
    "CRIO_CONFIG_MODE": "config",
}
OLDER_TOOLKIT = {
    **NATIVE_TOOLKIT,
    "NVIDIA_RUNTIME_SET_AS_DEFAULT": "true",
    "NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES": "nvidia.cdi.k8s.io/",
}


def expected_support(node: Node, row: Row) -> str:
    version = containerd_version(node)
    known = {(1, 6): row.support[0], (1, 7): row.support[1]}
    assert version in known, f"containerd {version} is not in this table; add a column."
    return known[version]


@promise(section="10", unit=UNIT, each_change=("as it comes",))
@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ROWS.items()])
def test_cdi_support_is_detected_from_the_output_of_containerd(
    start_node: StartNode, row: Row
) -> None:
    """The effective configuration of containerd decides; its version is only a fallback."""
    config = () if row.config is None else (GuestFile(path=CONFIG, content=row.config.encode()),)
    node = start_node("detection", files=[*config, *row.files], command=None)

    printed = node.provision("status").check("status").stdout
    document = json.loads(printed[printed.index("\n{") :])

    expected = expected_support(node, row)
    cdi = document["boot"]["cdi"]
    assert cdi["support"] == expected, f"'{expected}' was expected, but the node says {cdi}."
    is_native = expected != "absent"
    toolkit = NATIVE_TOOLKIT if is_native else OLDER_TOOLKIT
    assert cdi["toolkit_environment"] == toolkit, (
        f"{toolkit} was expected, but the node says {cdi}."
    )
    assert cdi["plugin_environment"]["DEVICE_LIST_STRATEGY"] == (
        "cdi-annotations,cdi-cri" if is_native else "envvar,cdi-annotations"
    )
