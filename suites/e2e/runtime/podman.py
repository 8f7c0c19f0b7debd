"""Debian 12's podman for a node of any image: podman gives CDI devices to containers by itself.

Podman, and the libraries that an image may lack, are copied into a separate folder; the node's
runc starts the containers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.api import GuestFile
from harness.debian_packages import ensure_unpacked
from harness.provisioning.command import LocalRunner
from suites.e2e.runtime.pods import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from harness.lab.node import Node
    from harness.provisioning.command import CommandResult

_RELEASE = "bookworm"
_PACKAGE = "podman"
_LIBRARIES = "lib/x86_64-linux-gnu"
_FILES = (
    "usr/bin/podman",
    "usr/bin/conmon",
    f"usr/{_LIBRARIES}/libassuan.so.0*",
    f"usr/{_LIBRARIES}/libglib-2.0.so.0*",
    f"usr/{_LIBRARIES}/libgpgme.so.11*",
    f"usr/{_LIBRARIES}/libsubid.so.4*",
    f"{_LIBRARIES}/libdevmapper.so.1.02.1",
    f"{_LIBRARIES}/libgpg-error.so.0*",
)
_FOLDER = "/opt/podman"
#: podman starts conmon with a new environment, which lacks the path of conmon's libraries.
_START_CONMON = GuestFile(
    path=f"{_FOLDER}/start-conmon",
    content=f'#!/bin/sh\nLD_LIBRARY_PATH={_FOLDER} exec {_FOLDER}/conmon "$@"\n'.encode(),
    mode=0o755,
)
#: podman uses no storage, journal or container network of the node.
_PODMAN = (
    *("env", f"LD_LIBRARY_PATH={_FOLDER}", f"{_FOLDER}/podman", "--conmon", _START_CONMON.path),
    *("--runtime", "/usr/sbin/runc", "--cgroup-manager", "cgroupfs", "--events-backend", "none"),
    *("--storage-driver", "vfs", "--root", "/srv/podman", "--runroot", "/run/podman"),
)
_RUN = ("run", "--rm", "--network", "host", "--no-hosts", "--log-driver", "none")


def podman_files(cache: Path, report: Callable[[str], None]) -> Sequence[GuestFile]:
    """Return podman's files for a guest; unpack them first if the cache does not have them.

    Raises RequirementError if mmdebstrap is missing, and CommandError if mmdebstrap fails.
    """
    root = ensure_unpacked(
        _FILES,
        package=_PACKAGE,
        release=_RELEASE,
        store=cache / f"{_PACKAGE}-{_RELEASE}",
        runner=LocalRunner(),
        report=report,
    )
    unpacked = [
        GuestFile(path=f"{_FOLDER}/{path.name}", content=path.read_bytes(), mode=0o755)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    ]
    return [_START_CONMON, *unpacked]


def run_by_podman(node: Node, script: str, *options: str) -> CommandResult:
    """Run a script in a container with podman; `options` are options of `podman run`."""
    return node.guest.run(
        *(*_PODMAN, *_RUN, *options, "--rootfs", ROOT, "/bin/sh", "-c", script), timeout_s=120
    )
