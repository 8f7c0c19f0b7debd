"""The versions of all programs that a machine used, on the host and in the guest."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence import Evidence
from harness.evidence.history import HISTORY, PACKAGES, parse_packages
from harness.lab.machine_bundle import qemu_version
from harness.payload import build_payload
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.lab.machine import LabMachine

SCHEMA = 1
_DISTRIBUTION = "gpu-node-harness"
_QUERY_S = 20.0


def versions_of(machine: LabMachine, folder: Path) -> dict[str, object]:
    """Return the versions by program, with None for unknown versions.

    The guest's versions come from the evidence and its history in `folder`.
    """
    kernel = qemu = None
    packages: Mapping[str, str] | None = None
    with contextlib.suppress(HarnessError, OSError):
        kernel = Evidence(folder).running_kernel
    with contextlib.suppress(HarnessError, OSError):
        packages = parse_packages(Evidence(folder / HISTORY).answer_of(PACKAGES))
    with contextlib.suppress(HarnessError, OSError):
        qemu = qemu_version(machine.spec.qemu)
    source = machine.description.source
    digest = None
    with contextlib.suppress(HarnessError, OSError, LookupError):
        digest = source.disk_sha256()
    return {
        "schema": SCHEMA,
        "harness": {"version": _installed(_DISTRIBUTION), "commit": _commit()},
        "host": {"kernel": platform.release(), "python": platform.python_version()},
        "python_packages": _python_packages(),
        "qemu": qemu,
        "accelerator": machine.spec.accelerator.name.lower(),
        "image": {"name": source.name, "digest": digest},
        "payload": build_payload().digest,
        "agent": hashlib.sha256(machine.agent_program).hexdigest(),
        "gpus": [gpu.title for gpu in machine.gpus.provided],
        "guest": {"kernel": kernel, "packages": packages},
    }


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _python_packages() -> Mapping[str, str]:
    """Return the versions of the installed pytest plugins and dependencies of the harness."""
    names = {"pytest", "pytest-xdist"}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        names |= {
            re.split(r"[^A-Za-z0-9._-]", each, maxsplit=1)[0]
            for each in importlib.metadata.requires(_DISTRIBUTION) or ()
        }
    names |= {
        point.dist.name
        for point in importlib.metadata.entry_points(group="pytest11")
        if point.dist is not None
    }
    found = {name: _installed(name) for name in sorted(names)}
    return {name: version for name, version in found.items() if version is not None}


def _commit() -> str | None:
    """Return the commit of a checkout of the harness, with `-dirty` if files were changed."""
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return None
    result = LocalRunner().run(
        ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40"],
        timeout_s=_QUERY_S,
    )
    return result.stdout.strip() or None if result.ok else None
