"""How a node's configuration gives devices to containers, and scripts for these containers.

containerd 1.6 does not support CDI, so the nvidia runtime adds the devices there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.api import GuestFile

if TYPE_CHECKING:
    from harness.lab.node import Node

PLUGIN = "nvidia-device-plugin"
ROOT = "/srv/pod"
_MAKE_ROOT = (
    f"mkdir -p {ROOT}/bin {ROOT}/proc {ROOT}/dev {ROOT}/sys {ROOT}/run {ROOT}/usr/bin; "
    f"cp /bin/busybox {ROOT}/bin/; for tool in sh sed ls tr dirname mknod cat head sleep; do "
    f"ln -s busybox {ROOT}/bin/$tool; done"
)
#: A root file system with the tools of busybox.
ROOT_FILE_SYSTEM = ["sh", "-euc", _MAKE_ROOT]
#: Opens the device and runs the driver's own program, as a workload would.
ASK = "set -e; : </dev/nvidia0; nvidia-smi --query-gpu=driver_version --format=csv,noheader"
#: A container may make device nodes; that alone must not give it the GPU.
MAKE_AND_OPEN = "mknod /run/gpu c 195 0 && : </run/gpu"

TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"
#: The package's configuration, shortened; provisioning chooses neither this mode nor this level.
TOOLKIT = """\
#swarm-resource = "DOCKER_RESOURCE_GPU"
[nvidia-container-runtime]
log-level = "debug"
mode = "legacy"
"""

RUNTIME_PATH = "/srv/nvidia-container-runtime"
#: A minimal form of NVIDIA's runtime: adds the GPUs that a container requests, then starts runc.
_RUNTIME = '''\
#!/usr/bin/python3
import json, os, pathlib, sys, tomllib, yaml

KIND = "nvidia.com/gpu"


def settings():
    path = pathlib.Path("/etc/nvidia-container-runtime/config.toml")
    text = path.read_text() if path.exists() else ""
    return tomllib.loads(text).get("nvidia-container-runtime", {})


def asked(document):
    """Return the names of the GPUs that the container's environment or annotations ask for."""
    prefixes = settings().get("modes", {}).get("cdi", {}).get("annotation-prefixes", ["cdi.k8s.io/"])
    environment = dict(word.partition("=")[::2] for word in document["process"].get("env", []))
    names = environment.get("NVIDIA_VISIBLE_DEVICES", "void").split(",")
    if settings().get("mode", "auto") == "cdi":
        for key, value in (document.get("annotations") or {}).items():
            if key.startswith(tuple(prefixes)):
                names += value.split(",")
    return [name.removeprefix(KIND + "=") for name in names if name not in ("", "void", "none")]


def edits(name):
    """Return the device nodes and mounts of a GPU: by the CDI spec in CDI mode, else by itself."""
    if settings().get("mode", "auto") != "cdi":
        mount = {"hostPath": "/usr/bin/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi"}
        return ["/dev/nvidia" + name, "/dev/nvidiactl"], [mount]
    spec = yaml.safe_load(open("/var/run/cdi/nvidia.yaml"))
    (device,) = (each for each in spec["devices"] if each["name"] == name)
    parts = (device["containerEdits"], spec["containerEdits"])
    return (
        [node["path"] for part in parts for node in part.get("deviceNodes", [])],
        [mount for part in parts for mount in part.get("mounts", [])],
    )


def add(document, nodes, mounts):
    linux = document["linux"]
    for path in nodes:
        number = os.stat(path).st_rdev
        device = {"type": "c", "major": os.major(number), "minor": os.minor(number)}
        linux.setdefault("devices", []).append({**device, "path": path, "fileMode": 0o666})
        linux.setdefault("resources", {}).setdefault("devices", []).append(
            {**device, "allow": True, "access": "rwm"}
        )
    for mount in mounts:
        options = mount.get("options", ["ro", "nosuid", "nodev", "bind"])
        document["mounts"].append(
            {
                "type": "bind",
                "source": mount["hostPath"],
                "destination": mount["containerPath"],
                "options": options,
            }
        )


words = sys.argv[1:]
if "create" in words:
    bundle = next(words[at + 1] for at, word in enumerate(words) if word in ("--bundle", "-b"))
    file = pathlib.Path(bundle) / "config.json"
    document = json.loads(file.read_text())
    for name in asked(document):
        add(document, *edits(name))
    file.write_text(json.dumps(document))
os.execvp("runc", ["runc", *words])
'''
RUNTIME = GuestFile(path=RUNTIME_PATH, content=_RUNTIME.encode(), mode=0o755)


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How this node's containers get devices, as its own configuration says."""

    strategies: tuple[str, ...]
    """The strategy with which the device plugin passes a GPU to the container runtime."""
    annotation_prefix: str
    """The prefix of the device plugin's annotations, if its strategy uses annotations."""
    default: str
    program: str

    @property
    def is_native(self) -> bool:
        return "cdi-cri" in self.strategies


def runtime_of(node: Node) -> Runtime:
    """Return the node's configuration as reported by systemd and containerd, and not by provisioning."""
    words = node.guest.output_of("systemctl", "show", "--property=Environment", "--value", PLUGIN)
    environment = dict(word.split("=", 1) for word in words.split())
    dump = node.guest.output_of("containerd", "config", "dump")
    # containerd 2 prints strings in single quotes.
    chosen = re.search(r"""^\s*default_runtime_name = ["'](.*)["']""", dump, re.MULTILINE)
    assert chosen is not None, "containerd was expected to have a default runtime."
    options = re.search(
        rf"""runtimes\.{chosen[1]}\.options\]\n(?:[^\[]*\n)?\s*BinaryName = ["'](.*)["']""", dump
    )
    return Runtime(
        strategies=tuple(environment["DEVICE_LIST_STRATEGY"].split(",")),
        annotation_prefix=environment.get("CDI_ANNOTATION_PREFIX", ""),
        default=chosen[1],
        program=options[1] if options is not None and options[1] else "runc",
    )
