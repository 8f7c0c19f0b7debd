"""The units of these tests, and settings that change how the units behave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cloudinit import GuestFile
from harness.evidence.units import unit_commands
from suites.e2e.guest_script import shell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.api import Argv
    from harness.evidence import Evidence
    from harness.lab.node import Node

UNIT = "suites/unit/provisioning/test_services.py"
MARKER = "/opt/azure/containers/managed-gpu-experience.enabled"

DCGM = "nvidia-dcgm.service"
EXPORTER = "nvidia-dcgm-exporter.service"
PLUGIN = "nvidia-device-plugin.service"
DRA = "dra-driver-nvidia-gpu.service"
DRA_PROGRAM = "/usr/bin/gpu-kubelet-plugin"
FABRIC_MANAGER = "nvidia-fabricmanager.service"
FABRIC_MANAGER_PROGRAM = "/usr/bin/nv-fabricmanager"
KUBELET = "kubelet.service"
MIG = "mig-partition.service"
ALL = (DCGM, EXPORTER, PLUGIN, DRA, FABRIC_MANAGER, KUBELET, MIG)

MANAGED: Mapping[str, object] = {"enable_managed_gpu": True}
#: Configures the same as `MANAGED`, for any provisioner.
TAG: Mapping[str, str] = {"EnableManagedGPUExperience": "true"}
#: The retry budget for a service that never starts, counted from the start of provisioning. The
#: steps before the service took up to 50 s on a host with four machines on two processors.
BRIEF: Mapping[str, object] = {"retry_budget_s": 120}
#: Variables for a stand-in that becomes ready late, a stand-in that never does, and one that
#: fails.
SLOW: Mapping[str, str] = {"START_DELAY_S": "10"}
HANGS: Mapping[str, str] = {"START_DELAY_S": "infinity"}
FAILS: Mapping[str, str] = {"START_RESULT": "fail"}

MONITORING_PACKAGES = (
    "datacenter-gpu-manager-4-core",
    "datacenter-gpu-manager-4-proprietary",
    "dcgm-exporter",
)


#: A node without the managed services has no services to stop.
NO_SERVICES = shell("rm /usr/lib/systemd/system/nvidia-d*.service")


def evidence_of(node: Node) -> Evidence:
    """Return the evidence of a node, with systemd's properties of the node's units."""
    return node.evidence(commands=unit_commands(*ALL))


def name_of(unit: str) -> str:
    return unit.removesuffix(".service")


def drop_in(unit: str, text: str) -> GuestFile:
    return GuestFile(
        path=f"/etc/systemd/system/{unit}.d/50-test.conf", content=f"[Service]\n{text}\n".encode()
    )


def smi_settings(script: str) -> GuestFile:
    """Return a file that the stand-in for nvidia-smi sources before it looks at the GPU."""
    return GuestFile(path="/etc/gpu-node/stand-ins/nvidia-smi.env", content=f"{script}\n".encode())


def unit_file(unit: str, program: str) -> GuestFile:
    """Return a unit file like the stand-in units of the image."""
    text = (
        f"[Unit]\nDescription={name_of(unit)} (stand-in)\n"
        "[Service]\nType=notify\nNotifyAccess=all\n"
        f"EnvironmentFile=-/etc/gpu-node/stand-ins/{name_of(unit)}.env\n"
        f"ExecStart={program}\nTimeoutStartSec=15min\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
    return GuestFile(path=f"/usr/lib/systemd/system/{unit}", content=text.encode())


def make_program(path: str) -> Argv:
    """Return the command that installs the program of the stand-ins under this name."""
    return ["cp", "/usr/bin/kubelet", path]


#: The versions of each cached package. Sorted as text, the newest version is not first or last.
_CACHED_VERSIONS = ("1.9.0", "1.11.0", "1.10.0")
_NEWEST = "1.11.0"


def fill_caches(*packages: str) -> Argv:
    """Return the command that makes packages without files in the image's caches, in three versions.

    The exporter's packages are in the subfolder `downloads`, which a cache may also use.
    """
    return shell(
        f"for name in {' '.join(packages)}; do cache=/opt/$name; "
        "case $name in dcgm-exporter) cache=$cache/downloads;; esac; "
        "mkdir -p /run/p/DEBIAN $cache; "
        f"for version in {' '.join(_CACHED_VERSIONS)}; do "
        'printf "Package: $name\\nVersion: $version\\nArchitecture: all\\nMaintainer: x\\nDescription: x\\n" '
        ">/run/p/DEBIAN/control; "
        "dpkg-deb --build -Znone /run/p $cache/${name}_${version}_all.deb; done; done"
    )


def remove_unit(*units: str) -> Argv:
    paths = " ".join(f"/usr/lib/systemd/system/{unit}" for unit in units)
    return shell(f"rm {paths}; systemctl daemon-reload")


def expect_installed(node: Node, *packages: str) -> None:
    """Expect that dpkg has installed the newest cached version of these packages."""
    result = node.guest.run("dpkg-query", "-W", "-f", "${Package} ${Version}\n", *packages)
    installed = dict(line.split() for line in result.stdout.splitlines() if " " in line.strip())
    assert installed == dict.fromkeys(packages, _NEWEST), (
        f"The version {_NEWEST} of {packages} was expected to be installed, but dpkg has {installed}."
    )


def expect_started_as(node: Node, unit: str, command: str) -> None:
    """Expect that the latest process of a stand-in was started with this command line."""
    journal = node.guest.output_of("journalctl", "--unit", unit, "--output", "cat")
    started = [line.partition(": started as: ")[2] for line in journal.splitlines()]
    commands = [each for each in started if each]
    assert commands[-1:] == [command], (
        f"Unit '{unit}' was expected to be started as '{command}', but was started as {commands}."
    )


def expect_property(node: Node, unit: str, name: str, *words: str) -> None:
    """Expect these words in the value that systemd has loaded for a property of a unit."""
    answer = node.guest.output_of("systemctl", "show", f"--property={name}", "--value", unit)
    missing = [word for word in words if word not in answer.split()]
    assert missing == [], (
        f"Unit '{unit}' was expected to have {missing} in {name}=, but has '{answer.strip()}'."
    )
