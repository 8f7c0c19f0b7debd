"""Starts pods on a node as a kubelet would: by the CRI of the node's containerd.

Debian has no `crictl`, so a program with gRPC is copied into the guest. No image is pulled: the
image of the pods and of their sandboxes is made in the guest.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.bench.time_to_gpu.node_tools import guest_wheels
from harness.image.formats import oci
from harness.plugin.select import requirements
from suites.e2e.runtime import cri
from suites.e2e.runtime.pods import ROOT, ROOT_FILE_SYSTEM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.lab.node import Node
    from harness.settings import Settings

_TOOLS = "/opt/kubelet"
_PROGRAM = Path(cri.__file__).parent
_FILES = ("start_pod.py", "runtime_v1.binpb")
#: Seconds under KVM for copying the tools and making the image in the guest.
_PREPARE_KVM_S = 60.0
_POD_KVM_S = 60.0
_PYTHON = "import sys; print('%d.%d' % sys.version_info[:2])"
_UNPACK = (
    "import sys, zipfile\n"
    "for wheel in sys.argv[2:]:\n"
    "    zipfile.ZipFile(wheel).extractall(sys.argv[1])\n"
)
#: The entrypoint of a sandbox and of a pod's container.
_PAUSE = "bin/pause"
_MAKE_IMAGE = (
    f"printf '#!/bin/sh\\nexec sleep 2147483647\\n' >{ROOT}/{_PAUSE}; chmod +x {ROOT}/{_PAUSE}; "
    f'python3 {_TOOLS}/oci.py --root {ROOT} --entrypoint /{_PAUSE} --reference "$1" '
    f"--archive {_TOOLS}/pod.tar; ctr -n k8s.io images import {_TOOLS}/pod.tar"
)
#: containerd 2 lists the image of sandboxes among the pinned images.
_SANDBOX_IMAGE = re.compile(r"""^\s*(?:sandbox_image|sandbox) = ["'](.+)["']""", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Container:
    """A script to run in a container, and fields of the container's ContainerConfig."""

    script: str
    config: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a command in a pod's container, or the runtime's error without a container."""

    exit_code: int | None
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


class Kubelet:
    """A node that can start pods; the cache of `settings` has the packages for the guest."""

    def __init__(self, node: Node, settings: Settings) -> None:
        self._node = node
        deadline = node.machine.deadline(_PREPARE_KVM_S)

        def output_of(*argv: str) -> str:
            return node.guest.output_of(*argv, timeout_s=max(1.0, deadline.remaining_s()))

        def write(file: Path) -> str:
            path = f"{_TOOLS}/{file.name}"
            node.machine.agent.write_bytes(path, file.read_bytes(), deadline)
            return path

        with requirements(settings):
            wheels = guest_wheels(settings.cache, output_of("python3", "-c", _PYTHON))
        output_of("python3", "-c", _UNPACK, f"{_TOOLS}/packages", *map(write, wheels))
        for file in (*(_PROGRAM / name for name in _FILES), Path(oci.__file__)):
            write(file)
        found = _SANDBOX_IMAGE.search(output_of("containerd", "config", "dump"))
        assert found is not None, "containerd was expected to name the image of its sandboxes."
        self._image = found[1]
        output_of(*ROOT_FILE_SYSTEM)
        output_of("sh", "-euc", _MAKE_IMAGE, "make-image", self._image)

    def run_pod(self, containers: Mapping[str, Container]) -> dict[str, Answer]:
        """Run the scripts in containers of a new pod, and return their results by the same names.

        Raises HarnessError if the runtime does not start the pod.
        """
        asked = {
            "image": self._image,
            "containers": [
                {"config": container.config, "command": ["/bin/sh", "-c", container.script]}
                for container in containers.values()
            ],
        }
        done = self._node.guest.run(
            *("env", f"PYTHONPATH={_TOOLS}/packages", "python3", "-B", f"{_TOOLS}/start_pod.py"),
            stdin=json.dumps(asked),
            timeout_s=self._node.machine.deadline(_POD_KVM_S).remaining_s(),
        )
        answers = json.loads(done.check("Starting a pod by the CRI").stdout)
        return {name: Answer(**told) for name, told in zip(containers, answers, strict=True)}
