"""Describes the nodes of each mode: image, kernel, registry, and the commands that reset a node."""

from __future__ import annotations

import contextlib
import functools
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.bench.time_to_gpu.node_tools import CONTROL, TOOLS, with_node_tools
from harness.bench.time_to_gpu.nvidia import INSTALL_LIMIT_S
from harness.bench.time_to_gpu.samples import Mode, Payload
from harness.cloudinit import GuestFile
from harness.errors import ExpectationError, HarnessError
from harness.image import CloudImage
from harness.lab.bakes import bake_node
from harness.lab.node_request import NodeRequest
from harness.lab.precompiled import modules_for, precompiled_archive
from harness.lab.registry import DRIVER_ARCHIVE, driver_archive
from harness.lab.saved_states import booted, cloud_init_done
from harness.provisioning.precompiled import label_value, os_tag
from harness.settings import MachineStart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from harness.gpu import GpuModel
    from harness.image import Image
    from harness.lab import Lab
    from harness.lab.node import Node
    from harness.lab.registry import Registry
    from harness.provisioner import Provisioner
    from harness.provisioning.command import Argv

_HERE = Path(__file__).parent
PRECOMPILED = "registry.test/gpu/driver"
#: The folder in a node with the programs that switch trims off.
TRIM_FOLDER = f"{TOOLS}/trims"
_SHAPE = f"{TOOLS}/shape.sh"
_PADDING_SEED = b"time-to-gpu"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Delay and bandwidth of the network to a registry, which `tc netem` simulates in the guest."""

    one_way_ms: float
    rate_kbit: int

    def describe(self) -> str:
        return f"{2 * self.one_way_ms:g} ms round trip, {self.rate_kbit / 1000:g} Mbit/s, by tc netem in the guest"


NEAR = Shape(one_way_ms=0.5, rate_kbit=1_000_000)
FAR = Shape(one_way_ms=40, rate_kbit=50_000)


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The resources that all nodes of one run share: the lab, images, provisioners and the registry."""

    lab: Lab
    gpu: GpuModel
    node_image: Image
    builtin: Provisioner
    """The harness's own provisioner, for all modes except the modes of the user's provisioner."""
    own: Provisioner | None
    registry: Registry | None
    shapes: Mapping[Mode, Shape]
    payload: Payload = Payload.STAND_IN
    cpus: int = 1
    """The vCPUs of each node."""

    @functools.cached_property
    def baked(self) -> Image:
        """Return the image with the driver baked in; the first use bakes the image if it is not cached."""
        if self.payload is Payload.NVIDIA:
            # The recipe has compiled the driver already, on the host's processors.
            return self.node_image
        return bake_node(self.lab, provisioner=self.builtin)

    @functools.cached_property
    def own_baked(self) -> Image | None:
        """Return the image that the user's own provisioner baked, or None if this provisioner declares no bake."""
        if self.own is None or self.own.bake is None:
            return None
        return bake_node(self.lab, provisioner=self.own)

    def modes(self) -> list[Mode]:
        """Return the modes that this run can measure."""
        modes = [Mode.BUILD, Mode.PREBAKED]
        if self.registry is not None:
            modes += [Mode.NEAR, Mode.FAR]
        modes.append(Mode.OTHER_KERNEL)
        if self.own is not None:
            modes.append(Mode.OWN)
            if self.own.bake is not None:
                modes.append(Mode.OWN_PREBAKED)
        return modes

    def request(self, mode: Mode) -> NodeRequest:
        """Return the request for a fresh node of `mode`, with the kubelet and the device plugin loaded."""
        image = self._image(mode)
        provisioner = self.own if mode in {Mode.OWN, Mode.OWN_PREBAKED} else self.builtin
        config: dict[str, object] = {}
        if provisioner is self.builtin:
            config["enable_managed_gpu"] = True
            if self.payload is Payload.NVIDIA:
                config["retry_budget_s"] = INSTALL_LIMIT_S
        request = NodeRequest(
            name=mode.value,
            image=image,
            kernel=image.other_kernel if mode is Mode.OTHER_KERNEL else None,
            provisioner=provisioner,
            command=None,
            config=config,
            gpus=[self.gpu],
            cpus=self.cpus,
            before=self._before(mode),
            skip_cloud_init=True,
            derive=functools.partial(with_node_tools, cache=self.lab.settings.cache),
        )
        shape = self.shapes.get(mode)
        if shape is None or self.registry is None:
            return request
        request = replace(request, config={**config, "precompiled_image": PRECOMPILED})
        return self.near_registry(request, shape)

    def _before(self, mode: Mode) -> list[Argv]:
        """Return the commands that remove the image's kernel module, if the node has to build the module."""
        if mode is Mode.BUILD and self.payload is Payload.NVIDIA:
            return [list(self.builtin.guest_command("teardown"))]
        return []

    def near_registry(self, request: NodeRequest, shape: Shape) -> NodeRequest:
        """Return `request`, changed so that the node reaches the registry over a simulated network."""
        if self.registry is None:
            raise HarnessError("This run has no registry.")
        file = GuestFile(path=_SHAPE, content=(_HERE / "shape.sh").read_bytes(), mode=0o755)
        shaped: Argv = ["sh", _SHAPE, f"{shape.one_way_ms:g}", str(shape.rate_kbit)]
        request = replace(request, files=(*request.files, file), before=[*request.before, shaped])
        return self.registry.reachable(request)

    def trimmed(self) -> NodeRequest:
        """Return the request for a prebaked node on which each trim of the boot path can be switched off."""
        program = (_HERE / "trim.sh").read_bytes()
        files = [
            GuestFile(path=f"{TRIM_FOLDER}/{name}", content=program, mode=0o755)
            for name in ("ctr", "systemctl")
        ]
        request = replace(self.request(Mode.PREBAKED), files=files)
        return request if self.registry is None else self.near_registry(request, NEAR)

    def _image(self, mode: Mode) -> Image:
        if mode in {Mode.PREBAKED, Mode.OTHER_KERNEL}:
            return self.baked
        if mode is Mode.OWN_PREBAKED and self.own_baked is not None:
            return self.own_baked
        return self.node_image

    def ensure_state(self, request: NodeRequest) -> None:
        """Make the saved state from which the requested node continues, if the cache lacks that state."""
        image = request.image
        if isinstance(image, CloudImage) or request.derive is None:
            return
        state = booted(
            image,
            request.booted_kernel,
            memory_mib=request.memory_mib,
            cpus=request.cpus,
            slots=request.slots,
        )
        self.lab.ensure_checkpoint(request.derive(cloud_init_done(state)))

    def publish(self, padding_mib: int) -> None:
        """Push the driver image, and a padded image with a precompiled module, to the registry.

        The module is compiled for the image's newest kernel. Raises HarnessError for an image
        without a driver.
        """
        if self.registry is None:
            return
        driver, kernel = self.node_image.driver, self.node_image.newest_kernel
        if driver is None:
            raise HarnessError(f"The image '{self.node_image.name}' names no driver.")
        plain = driver_archive(self.lab, self.node_image)
        modules = modules_for(self.lab, self.baked, kernel)
        archive = precompiled_archive(
            plain, kernel.version, modules, padding=_padding(padding_mib)
        )
        tag = f"{driver.version}-{label_value(kernel.version)}-{self._os_tag()}"
        self.registry.push(archive, f"{PRECOMPILED}:{tag}")
        self.registry.push(plain, driver.reference)

    def _os_tag(self) -> str:
        with self.lab.clone(booted(self.node_image), "os-release") as machine:
            return os_tag(machine.guest.read_text("/etc/os-release") or "")

    def reset_commands(self, mode: Mode) -> list[Argv]:
        """Return the commands that prepare a provisioned node for another set-up of its driver.

        The time of the reset is not measured. The commands keep the parts of the driver that the
        mode's image has before the first boot: the prebaked module, and the driver image.
        """
        unload = (
            "systemctl stop nvidia-dcgm-exporter nvidia-dcgm nvidia-modprobe; "
            "for module in nvidia_uvm nvidia; do "
            'grep -q "^$module " /proc/modules && rmmod $module; done; rm -f /dev/nvidia*'
        )
        commands: list[Argv] = [
            [
                "sh",
                "-c",
                f"systemctl stop nvidia-device-plugin 2>/dev/null; echo stop >{CONTROL}/plugin",
            ],
            ["sh", "-c", unload],
        ]
        if mode in {Mode.OWN, Mode.OWN_PREBAKED}:
            if self.own is not None and self.own.teardown is not None:
                commands.append(list(self.own.guest_command("teardown")))
            return commands
        if mode is not Mode.PREBAKED:
            commands.append(list(self.builtin.guest_command("teardown")))
        commands.append(["ctr", "-n", "k8s.io", "images", "import", DRIVER_ARCHIVE])
        return commands

    def can_reset(self, mode: Mode) -> bool:
        """Return whether nodes of a mode can be reset, which needs a provisioner with a teardown."""
        if mode in {Mode.OWN, Mode.OWN_PREBAKED}:
            return self.own is not None and self.own.teardown is not None
        return mode is not Mode.OTHER_KERNEL


def _padding(mib: int) -> bytes:
    """Return the same incompressible bytes at each call."""
    return random.Random(_PADDING_SEED).randbytes(mib << 20)  # noqa: S311 - nothing here is secret


@contextlib.contextmanager
def booted_node(fleet: Fleet, request: NodeRequest) -> Iterator[Node]:
    """Yield a node that boots from its saved state; if the `with` block fails, save the node's evidence."""
    with fleet.lab.boot(request, start=MachineStart.CLONE) as node:
        try:
            yield node
        except (HarnessError, ExpectationError) as error:
            if error.evidence is None:
                error.evidence = fleet.lab.try_save_evidence(node, f"time-to-gpu/{request.name}")
            raise
