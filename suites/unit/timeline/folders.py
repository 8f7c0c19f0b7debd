"""Builds the evidence of a machine whose test failed, with its history."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.evidence.history import (
    DKMS_LOGS,
    HISTORY,
    MANAGER_TIMES,
    PACKED_JOURNAL,
    UNIT_TIMES,
    UPTIME,
)
from harness.evidence.requested import write_request
from harness.evidence.units import UNIT_JOBS
from harness.provisioner.gpu_node import EVENTS_FOLDER
from suites.unit.evidence.folders import EvidenceFolder

if TYPE_CHECKING:
    from pathlib import Path

#: The start of the guest's kernel, by the guest's clock: 2026-11-23T05:50:00Z.
BOOTED_AT_S = 1_795_413_000
BOOT, EARLIER_BOOT = "b" * 32, "a" * 32


def a_unit(
    name: str,
    started_s: float = 0.0,
    ready_s: float = 0.0,
    *,
    after: str = "",
    active: str = "active",
    result: str = "success",
) -> str:
    """Return a unit as `systemctl show` prints it; 0 means that there is no timestamp."""
    is_open = active == "activating"
    stamps = {
        "InactiveExitTimestampMonotonic": started_s,
        "ActiveEnterTimestampMonotonic": 0 if is_open or active == "failed" else ready_s,
        "ActiveExitTimestampMonotonic": 0,
        "InactiveEnterTimestampMonotonic": ready_s if active == "failed" else 0,
    }
    lines = [f"Id={name}", f"ActiveState={active}", f"Result={result}", f"After={after}"]
    lines += [f"{key}={int(value * 1e6)}" for key, value in stamps.items()]
    return "\n".join(lines)


def an_entry(
    at_s: float, message: str, *, boot: str = BOOT, wall_s: float | None = None, **fields: str
) -> bytes:
    """Return an entry in the journal's export format; by default, the clock was never set."""
    wall = BOOTED_AT_S + at_s if wall_s is None else wall_s
    values = {
        "__REALTIME_TIMESTAMP": str(int(wall * 1e6)),
        "__MONOTONIC_TIMESTAMP": str(int(at_s * 1e6)),
        "_BOOT_ID": boot,
        "MESSAGE": message,
        **fields,
    }
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode() + b"\n"


@dataclass
class HistoryFolder:
    """The planned evidence of one machine; `write` writes it into a folder."""

    root: Path
    units: list[str] = field(default_factory=list)
    jobs: str = ""
    entries: list[bytes] = field(default_factory=list)
    uptime_s: float = 300.0
    dkms: dict[str, tuple[str, float]] = field(default_factory=dict)
    """The logs of builds by path, with when they were written last."""

    @property
    def evidence(self) -> EvidenceFolder:
        return EvidenceFolder(self.root)

    def write(self) -> Path:
        (self.root / "host").mkdir(parents=True, exist_ok=True)
        history = EvidenceFolder(self.root / HISTORY)
        history.command(UNIT_TIMES, "\n\n".join(self.units) + "\n")
        history.command(MANAGER_TIMES, "UserspaceTimestampMonotonic=12000000\n")
        history.command(UNIT_JOBS, self.jobs)
        history.file(UPTIME, f"{self.uptime_s} 1.0\n")
        for path, (text, _) in self.dkms.items():
            history.file(path, text)
        history.paths(
            *(f"f 644 {len(text)} {at} {path}" for path, (text, at) in self.dkms.items())
        )
        (history.root / "unreadable.txt").write_text("")
        write_request(history.root, commands={}, files=[UPTIME, *DKMS_LOGS], paths=list(DKMS_LOGS))
        packed = gzip.compress(b"".join(self.entries), mtime=0)
        (history.root / PACKED_JOURNAL).write_bytes(packed)
        write_request(
            self.root,
            commands={},
            files=["/var/*/*/*", "/var/*/*/*/*", f"{EVENTS_FOLDER}/*", "/run/*"],
            paths=[],
        )
        (self.root / "unreadable.txt").write_text("")
        return self.root

    def host_events(self, *names: str) -> None:
        """Record these events of the guest, and a reset by the host, as the host's events."""
        events = [
            {"name": name, "at_s": 1.0, "data": {"guest": is_guest}}
            for name, is_guest in (("RESET", False), *((name, True) for name in names))
        ]
        (self.root / "host").mkdir(parents=True, exist_ok=True)
        (self.root / "host/qmp-events.json").write_text(json.dumps(events))


def a_node_that_built(folder: Path, *, hangs: bool = False) -> HistoryFolder:
    """Return a node as a bake under TCG left it: cloud-init, then a build of 119 s in a container.

    With `hangs`, the provisioner still runs when the evidence is gathered.
    """
    final = (
        a_unit(
            "cloud-final.service",
            121.0,
            after="cloud-config.service basic.target",
            active="activating",
        )
        if hangs
        else a_unit("cloud-final.service", 107.1, 268.0, after="cloud-config.service basic.target")
    )
    goal = (
        a_unit("cloud-init.target", after="cloud-final.service", active="inactive")
        if hangs
        else a_unit("cloud-init.target", 268.1, 268.1, after="cloud-final.service")
    )
    node = HistoryFolder(
        folder,
        units=[
            a_unit("sysinit.target", 30.0, 30.0, after="dev-vda1.device systemd-udevd.service"),
            a_unit("systemd-udevd.service", 20.0, 26.5, after="dev-vda1.device"),
            a_unit("dev-vda1.device", 22.0, 22.0),
            a_unit("cloud-init-local.service", 23.0, 28.0, after="systemd-udevd.service"),
            a_unit("cloud-init.service", 41.0, 70.0, after="cloud-init-local.service"),
            a_unit("sshd-keygen@rsa.service", 40.5, 44.0, after="sysinit.target"),
            a_unit("basic.target", 71.0, 71.0, after="sysinit.target cloud-init.service"),
            a_unit("containerd.service", 72.0, 88.0, after="basic.target"),
            a_unit(
                "getty-static.service",
                73.0,
                74.0,
                after="basic.target",
                active="failed",
                result="exit-code",
            ),
            a_unit("cloud-config.service", 91.0, 107.0, after="basic.target containerd.service"),
            final,
            goal,
            a_unit("never-started.service", after="basic.target", active="inactive"),
        ],
        jobs="  1 cloud-init.target   start waiting\n  2 cloud-final.service start running\n"
        if hangs
        else "",
        uptime_s=281.0,
    )
    shim = 'msg="starting signal loop" namespace=k8s.io path=/run/containerd/x/k8s.io/gpuprebuild'
    node.entries = [
        an_entry(12.5, "systemd 252 running in system mode"),
        an_entry(150.0, f"time=1 level=info {shim}", SYSLOG_IDENTIFIER="containerd"),
        *(
            ()
            if hangs
            else (
                an_entry(
                    265.9,
                    'level=info msg="shim disconnected" id=gpuprebuild',
                    SYSLOG_IDENTIFIER="containerd",
                ),
            )
        ),
        an_entry(280.0, "Startup finished"),
    ]
    node.dkms = {
        "/var/lib/dkms/nvidia/580.126.09/6.1.0-56-cloud-amd64/x86_64/log/make.log": (
            "DKMS make.log for nvidia-580.126.09\nMon Nov 23 05:52:44 UTC 2026\nmake: Entering\n",
            BOOTED_AT_S + 250.0,
        )
    }
    if not hangs:
        node.evidence.outcome(
            steps=[
                {
                    "name": name,
                    "status": "done",
                    "started": started,
                    "duration_s": duration_s,
                    "detail": None,
                }
                for name, started, duration_s in (
                    ("fetch-driver-image", "2026-11-23T05:52:23.051+00:00", 2.191),
                    ("install-build-tools", "2026-11-23T05:52:25.298+00:00", 1.612),
                    ("build-driver", "2026-11-23T05:52:26.990+00:00", 119.463),
                )
            ]
        )
    return node
