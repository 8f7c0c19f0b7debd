"""Puts the kubelet and the device plugin into a guest, once for each image and kernel.

Both programs run in a saved state, and the nodes of all samples continue from this saved state.
gRPC is installed from PyPI's wheels for the guest's Python. An image with Debian's python3-grpcio
would need its own bakes, and other distributions have other versions of the package.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError, RequirementError
from harness.foreign_json import parse_json
from harness.lease import hold, make_private_folder
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.lab.machine import LabMachine
    from harness.lab.saved_states import SavedState

_HERE = Path(__file__).parent
_PACKAGES = _HERE / "guest-packages.txt"
_PROTOCOL = _HERE / "device_plugin"
_PROGRAMS = ("__init__.py", "api.py", "kubelet.py", "plugin.py", "v1beta1.binpb")

TOOLS = "/opt/time-to-gpu"
CONTROL = "/run/time-to-gpu"
EVENTS = f"{CONTROL}/events.jsonl"
PROVISION = f"{TOOLS}/provision.sh"
PLUGIN_FOLDER = "/var/lib/kubelet/device-plugins"
DEVICES = "/dev/nvidia[0-9]*"

_DOWNLOAD_S = 300.0
#: The time limit in seconds under KVM; for TCG, the limit is multiplied by TCG's factor.
_INSTALL_KVM_S = 90.0
_GUEST_PYTHON = "import sys; print('%d.%d' % sys.version_info[:2])"
_REHEARSE = (
    f"until grep -qs plugin-loaded {EVENTS}; do sleep 0.1; done; : >/dev/nvidia0; "
    f"echo start >{CONTROL}/plugin; until grep -q allocated {EVENTS}; do sleep 0.1; done; "
    f"echo stop >{CONTROL}/plugin; rm /dev/nvidia0; "
    f"until grep -q '\"count\": 0' {EVENTS}; do sleep 0.1; done; rm {EVENTS}"
)
_UNPACK = (
    "import sys, zipfile\n"
    "for wheel in sys.argv[2:]:\n"
    "    zipfile.ZipFile(wheel).extractall(sys.argv[1])\n"
)


def guest_wheels(cache: Path, python: str, packages: Path = _PACKAGES) -> Sequence[Path]:
    """Return the wheels of `packages` for the guest's version of Python, such as `3.11`.

    `packages` is a requirements file with digests, by default the file for the kubelet and the
    device plugin.

    pip downloads the wheels once and checks their digests. Raises RequirementError if the wheels
    can't be downloaded.
    """
    key = hashlib.sha256(packages.read_bytes()).hexdigest()[:16]
    top = make_private_folder(cache / "guest-packages")
    folder = top / f"{key}-{python}"
    with hold(top / "lock", timeout_s=_DOWNLOAD_S, what="the guest's packages"):
        if not folder.exists():
            part = make_private_folder(top / f".{folder.name}")
            argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            argv += ["--require-hashes", "--only-binary=:all:", f"--python-version={python}"]
            argv += ["--platform=manylinux2014_x86_64", "--platform=manylinux_2_17_x86_64"]
            argv += [f"--dest={part}", f"--requirement={packages}"]
            result = LocalRunner().run(argv, timeout_s=_DOWNLOAD_S)
            if not result.ok:
                raise RequirementError(
                    "pip could not download the Python packages that the guest needs for Python "
                    f"{python}; '{packages.name}' lists packages for Python 3.10 to 3.13 on x86-64.\n"
                    f"{result.render()}"
                )
            part.rename(folder)
    return sorted(folder.glob("*.whl"))


def with_node_tools(state: SavedState, cache: Path) -> SavedState:
    """Return a state, derived from `state`, in which the kubelet serves and the device plugin is loaded."""

    def make(machine: LabMachine) -> None:
        _install(machine, cache)

    return state.derive(f"{state.origin.name}-time-to-gpu", make, _parts())


def _parts() -> Mapping[str, str]:
    files = [*(_PROTOCOL / name for name in _PROGRAMS), _PACKAGES, Path(__file__)]
    files += [_HERE / name for name in ("kubelet.sh", "device-plugin.sh", "provision.sh")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _install(machine: LabMachine, cache: Path) -> None:
    guest, deadline = machine.guest, machine.deadline(_INSTALL_KVM_S)

    def output_of(*argv: str) -> str:
        return guest.output_of(*argv, timeout_s=max(1.0, deadline.remaining_s()))

    def write(path: str, content: bytes, mode: int = 0o644) -> None:
        machine.agent.write_bytes(path, content, deadline, mode)

    python = output_of("python3", "-c", _GUEST_PYTHON)
    wheels = guest_wheels(cache, python)
    for wheel in wheels:
        write(f"{TOOLS}/{wheel.name}", wheel.read_bytes())
    paths = [f"{TOOLS}/{wheel.name}" for wheel in wheels]
    output_of("python3", "-c", _UNPACK, f"{TOOLS}/packages", *paths)
    output_of("rm", *paths)
    for name in _PROGRAMS:
        write(f"{TOOLS}/{_PROTOCOL.name}/{name}", (_PROTOCOL / name).read_bytes())
    write(PROVISION, (_HERE / "provision.sh").read_bytes(), 0o755)
    write("/usr/bin/kubelet", (_HERE / "kubelet.sh").read_bytes(), 0o755)
    write("/usr/bin/nvidia-device-plugin", (_HERE / "device-plugin.sh").read_bytes(), 0o755)
    output_of("mkdir", "-p", CONTROL, PLUGIN_FOLDER)
    for name, *more in (("kubelet",), ("plugin", DEVICES)):
        control = f"{CONTROL}/{name}"
        output_of("mkfifo", "-m", "600", control)
        output_of(
            *("systemd-run", "--quiet", f"--unit=time-to-gpu-{name}"),
            f"--setenv=PYTHONPATH={TOOLS}/packages:{TOOLS}",
            *("python3", "-B", "-m", f"{_PROTOCOL.name}.{name}"),
            *(PLUGIN_FOLDER, control, EVENTS, *more),
        )
    output_of("sh", "-c", f"echo start >{CONTROL}/kubelet")
    try:
        # A trial registration, with a plain file as GPU, makes gRPC load the modules that are
        # otherwise loaded late.
        output_of("sh", "-c", _REHEARSE)
    except HarnessError as error:
        found = guest.run("journalctl", "--no-pager", "--unit=time-to-gpu-*").stdout
        raise HarnessError(
            f"The kubelet and the device plugin did not start in '{machine.name}': {error}\n{found}"
        ) from error


def parse_events(text: str) -> list[dict[str, object]]:
    """Parse the text of a guest's events file; return the events, oldest first."""
    return [parse_json(line) for line in text.splitlines() if line.strip()]
