"""A simulated node: real files, and fakes of the tools that boot, bake and teardown need.

It is a fake of `Runner` and not a script of expected commands: tests of properties that hold for
every order of events need a node that answers each command at any time. An unknown command is refused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.provisioning.command import CommandResult
from harness.provisioning.containerd_config import CONTAINERD_CONFIG
from harness.provisioning.kernel_modules import UNLOAD_ORDER, newest_kernel_with_headers
from harness.provisioning.node_files import NodeFiles
from harness.provisioning.tags import CACHE_PATH
from harness.shell.mocks.scripted_runner import ScriptViolationError

from .fakes import IMAGE, KERNEL, OTHER_KERNEL, RECORD_PATH, VERSION
from .simulated_containerd import Files, RefusedError, Release, config_dump

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

MIG_QUERY = "--query-gpu=mig.mode.current"
DKMS = "/var/lib/dkms/nvidia"
PROGRAMS = tuple(
    f"/usr/bin/{name}"
    for name in (
        "nvidia-smi",
        "nvidia-debugdump",
        "nvidia-persistenced",
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
        "nvidia-modprobe",
        "nvidia-bug-report.sh",
        "nvidia-powerd",
        "nvidia-ngx-updater",
        "nvidia-sleep.sh",
    )
)
"""The programs that a driver image installs; a second list, independent of the product's list."""


class KilledError(BaseException):
    """The simulated node lost power, or the run was killed by SIGKILL."""


def module_text(version: str, kernel: str) -> str:
    """Return the content of a fake module file, which is the output of modinfo for the module."""
    return (
        f"filename:       nvidia.ko\nversion:        {version}\n"
        f"vermagic:       {kernel} SMP preempt mod_unload modversions \n"
    )


def module_path(kernel: str, name: str = "nvidia") -> str:
    return f"/lib/modules/{kernel}/updates/dkms/{name.replace('_', '-')}.ko"


@dataclass
class SimulatedNode:
    """A Debian node with a GPU, two kernels, containerd and a driver image."""

    top: Path
    kernel: str = KERNEL
    arch: str = "x86_64"
    has_gpu: bool = True
    images: set[str] = field(default_factory=lambda: {IMAGE})
    registry: set[str] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)
    units: set[str] = field(default_factory=lambda: {"containerd", "kubelet", "nvidia-modprobe"})
    active: set[str] = field(default_factory=set)
    enabled: set[str] = field(default_factory=set)
    kind: str = "cuda"
    image_version: str = VERSION
    image_actions: tuple[str, ...] = ("build-only", "install", "install-skip-build")
    failing: dict[str, CommandResult] = field(default_factory=dict)
    """Scripted results in place of the simulation's, by the start of the command line."""
    kernel_log: str = ""
    mig_modes: str = "Disabled\n"
    containerd: Release = Release.OLD
    fuse: int | None = None
    """The number of actions before the node loses power."""
    calls: list[tuple[str, ...]] = field(default_factory=list)
    limits_s: list[float] = field(default_factory=list)
    """The time limits of `calls`."""
    indexed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The modules of DKMS that depmod found last, by kernel."""

    def __post_init__(self) -> None:
        self.files = NodeFiles(self.top)
        self._write("/etc/os-release", "ID=debian\nVERSION_ID=12\n")
        for kernel in (KERNEL, OTHER_KERNEL):
            self._write(f"/lib/modules/{kernel}/build/Makefile", "")
        self._write(CACHE_PATH, '{"compute": {"tagsList": []}}')

    # -- what happens -------------------------------------------------------------------------

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert timeout_s >= 0
        assert stdin is None
        assert env is None or set(env) == {"DEBIAN_FRONTEND"}
        self._tick()
        call = tuple(argv)
        self.calls.append(call)
        self.limits_s.append(timeout_s)
        line = " ".join(call)
        for start, result in self.failing.items():
            if line.startswith(start):
                return result
        for words, answer in self._tools():
            if call[: len(words)] == words:
                return answer(call)
        raise ScriptViolationError(f"The simulated node does not know '{line}'.")

    def _tick(self) -> None:
        if self.fuse is not None:
            if self.fuse == 0:
                raise KilledError
            self.fuse -= 1

    def _tools(
        self,
    ) -> Iterator[tuple[tuple[str, ...], Callable[[tuple[str, ...]], CommandResult]]]:
        yield ("uname", "-r"), lambda c: self.answer(c, self.kernel)
        yield ("uname", "-m"), lambda c: self.answer(c, self.arch)
        yield ("uname", "-n"), lambda c: self.answer(c, "Node-0")
        yield ("dmesg",), lambda c: self.answer(c, self.kernel_log)
        yield ("ldconfig",), self.answer
        yield ("depmod", "-a"), self._depmod
        yield ("apt-get", "install"), self.answer
        yield ("shutdown", "-r"), self.answer
        yield ("dkms", "status"), lambda c: self.answer(c, self._dkms_status())
        yield ("modinfo",), self._modinfo
        yield ("rmmod",), self._rmmod
        yield ("containerd", "--version"), lambda c: self.answer(c, f"x {self.containerd.value}")
        yield ("containerd",), self._containerd
        yield ("ctr", "version"), self.answer
        yield ("ctr", "-n", "k8s.io"), self._ctr
        yield ("systemctl",), self._systemctl
        yield ("nvidia-modprobe",), self._modprobe
        yield ("nvidia-smi", MIG_QUERY), lambda c: self.answer(c, self.mig_modes)
        yield ("nvidia-smi",), self._smi

    @staticmethod
    def answer(call: tuple[str, ...], text: str = "") -> CommandResult:
        return CommandResult(argv=call, exit_code=0, stdout=text, stderr="")

    @staticmethod
    def _fail(call: tuple[str, ...], why: str, exit_code: int = 1) -> CommandResult:
        return CommandResult(argv=call, exit_code=exit_code, stdout="", stderr=why)

    # -- kernel modules -----------------------------------------------------------------------

    def loaded(self) -> tuple[str, ...]:
        lines = (self.files.read("/proc/modules") or "").splitlines()
        return tuple(line.split()[0] for line in lines)

    def load(self, version: str, *names: str, users: int = 0) -> None:
        """Load modules; each module except nvidia, and each of `users`, holds a reference to nvidia."""
        names = names or ("nvidia",)
        holders = [name for name in names if name != "nvidia"]
        lines = [f"{name} 16384 0 - Live 0x0" for name in holders]
        held_by = ",".join(holders) + "," if holders else "-"
        lines.append(f"nvidia 16384 {len(holders) + users} {held_by} Live 0x0")
        self.files.write("/proc/modules", "\n".join(lines) + "\n")
        self.files.write("/sys/module/nvidia/version", f"{version}\n")

    def _rmmod(self, call: tuple[str, ...]) -> CommandResult:
        kept = []
        for line in (self.files.read("/proc/modules") or "").splitlines():
            name, size, references, holders, *rest = line.split()
            if name == call[1]:
                if int(references):
                    return self._fail(call, f"rmmod: ERROR: Module {name} is in use")
                continue
            names = [holder for holder in holders.strip("-").split(",") if holder]
            if call[1] in names:
                names.remove(call[1])
                references, holders = (
                    str(int(references) - 1),
                    ",".join(names) + "," if names else "-",
                )
            kept.append(" ".join((name, size, references, holders, *rest)))
        if call[1] not in UNLOAD_ORDER:
            return self._fail(call, f"rmmod: ERROR: not ours: {call[1]}")
        self.files.write("/proc/modules", "".join(f"{line}\n" for line in kept))
        if call[1] == "nvidia":
            self.files.remove("/sys/module/nvidia")
        return self.answer(call)

    def _depmod(self, call: tuple[str, ...]) -> CommandResult:
        self.indexed[call[2]] = self.files.names(f"/lib/modules/{call[2]}/updates/dkms")
        return self.answer(call)

    def _modinfo(self, call: tuple[str, ...]) -> CommandResult:
        match call[1:]:
            case ("-k", kernel, "nvidia"):
                text = self.files.read(module_path(kernel))
            case ("-F", "version", "nvidia"):
                text = self.files.read(module_path(self.kernel))
                if text is not None:
                    return self.answer(call, text.split("version:")[1].split()[0] + "\n")
            case (path,):
                text = self.files.read(path.removeprefix(str(self.top)))
            case _:
                raise ScriptViolationError(f"modinfo is not asked like this: {call}.")
        if text is None:
            return self._fail(call, "modinfo: ERROR: Module nvidia not found.")
        return self.answer(call, text)

    def _dkms_status(self) -> str:
        lines = []
        for version in self.files.names(DKMS):
            for kernel in self.files.names(f"{DKMS}/{version}"):
                if self.files.exists(f"{DKMS}/{version}/{kernel}/{self.arch}"):
                    text = self.files.read(module_path(kernel)) or ""
                    state = "installed" if version in text else "built"
                    lines.append(f"nvidia/{version}, {kernel}, {self.arch}: {state}\n")
        return "".join(lines)

    def _modprobe(self, call: tuple[str, ...]) -> CommandResult:
        text = self.files.read(module_path(self.kernel))
        if not self.files.exists("/usr/bin/nvidia-modprobe"):
            return self._fail(call, "nvidia-modprobe: not found", 127)
        if not self.has_gpu or text is None or f"vermagic:       {self.kernel} " not in text:
            return self._fail(call, "no device")
        if "nvidia" not in self.loaded():
            self.load(text.split("version:")[1].split()[0])
        return self.answer(call)

    def _smi(self, call: tuple[str, ...]) -> CommandResult:
        if not self.files.exists("/usr/bin/nvidia-smi"):
            return self._fail(call, "nvidia-smi: not found", 127)
        resident = (self.files.read("/sys/module/nvidia/version") or "").strip()
        staged = self.files.names("/usr/bin/lib64/lib64")
        if "nvidia" not in self.loaded() or staged != (f"libcuda.so.{resident}",):
            return self._fail(call, "Failed to initialize NVML: Driver/library version mismatch")
        return self.answer(call, f"Driver Version: {resident}\n")

    # -- containerd ---------------------------------------------------------------------------

    def _containerd(self, call: tuple[str, ...]) -> CommandResult:
        match call[1:]:
            case ("config", "dump"):
                path = CONTAINERD_CONFIG
            case ("--config", named, "config", "dump"):
                path = named.removeprefix(str(self.top))
            case _:
                raise ScriptViolationError(f"containerd is not called like this: {call}.")
        files = Files(read=self.files.read, matching=self._matching)
        if call[1] == "config" and not self.files.exists(path):
            files = Files(read=lambda _: "", matching=self._matching)
        try:
            return self.answer(call, config_dump(path, files, self.containerd))
        except RefusedError as error:
            return self._fail(call, str(error))

    def _matching(self, pattern: str) -> list[str]:
        found = self.top.glob(pattern.lstrip("/"))
        return [f"/{path.relative_to(self.top)}" for path in found]

    # -- the driver image ---------------------------------------------------------------------

    def _ctr(self, call: tuple[str, ...]) -> CommandResult:
        match call[3:]:
            case ("images", "ls", "-q", query):
                name = query.removeprefix("name==")
                return self.answer(call, f"{name}\n" if name in self.images else "")
            case ("image", "pull", name):
                if name not in self.registry:
                    return self._fail(
                        call, f'ctr: failed to resolve reference "{name}": {name}: not found'
                    )
                self.images.add(name)
            case ("image", "tag", name, new):
                if name not in self.images or new in self.images:
                    return self._fail(call, "cannot tag")
                self.images.add(new)
            case ("image" | "images", "rm", *names):
                self.images.difference_update(names)
            case _:
                return self._containers(call)
        return self.answer(call)

    def _containers(self, call: tuple[str, ...]) -> CommandResult:
        match call[3:]:
            case ("containers", "ls", "-q", query):
                left = {query.removeprefix("id==")} & self.containers
                return self.answer(call, "".join(f"{name}\n" for name in left))
            case ("container", "rm", container):
                self.containers.discard(container)
            case ("task", *_):
                pass
            case ("run", *_, name, container, "/entrypoint.sh", action):
                if container in self.containers:
                    return self._fail(call, f'container "{container}": already exists')
                # The container stays if the power fails during the run.
                self.containers.add(container)
                result = self._entry_point(call, name, action)
                self.containers.discard(container)
                return result
            case _:
                raise ScriptViolationError(f"ctr is not called like this: {call}.")
        return self.answer(call)

    def _entry_point(self, call: tuple[str, ...], name: str, action: str) -> CommandResult:
        if name not in self.images:
            return self._fail(call, f"image {name}: not found")
        if action not in self.image_actions:
            return self._fail(call, "/opt/gpu/config.sh: No such file or directory")
        if action == "install-skip-build" and not self.files.exists(module_path(self.kernel)):
            return self._fail(call, "there is no module for this kernel")
        is_build = action == "build-only"
        target = (newest_kernel_with_headers(self.files) or "") if is_build else self.kernel
        if action != "install-skip-build":
            self.build(self.image_version, target)
        if action != "build-only":
            self._modprobe(call)
            if not self._smi(call).ok:
                return self._fail(call, "the driver does not come up")
        return self.answer(call)

    def build(self, version: str, kernel: str) -> None:
        """Change the host's files as the driver image does; write the record last."""
        self._put(f"/usr/src/nvidia-{version}/dkms.conf")
        self._put(f"{DKMS}/{version}/source/dkms.conf")
        self._put(f"{DKMS}/{version}/{kernel}/{self.arch}/log/make.log", "CC nvidia.o\n")
        for name in ("nvidia", "nvidia_uvm"):
            self._put(module_path(kernel, name), module_text(version, kernel))
        self._put(f"/usr/bin/lib64/lib64/libcuda.so.{version}")
        self._put("/etc/ld.so.conf.d/nvidia.conf", "/usr/bin/lib64/lib64\n")
        for program in PROGRAMS:
            self._put(program, mode=0o4755 if "modprobe" in program else 0o755)
        self._put(
            RECORD_PATH,
            f"kernel={kernel}\ndriver_version={version}\ndriver_kind={self.kind}\n"
            f"arch={self.arch}\n",
        )

    def _put(self, path: str, text: str = "", *, mode: int = 0o644) -> None:
        """Write a file as the driver image does; power may fail at each write."""
        self._tick()
        self._write(path, text, mode)

    def _write(self, path: str, text: str, mode: int = 0o644) -> None:
        # `os` takes a third of the time of pathlib, and a thousand tests write these files.
        place, flags = f"{self.top}{path}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            file = os.open(place, flags)
        except FileNotFoundError:
            self.files.at(path).parent.mkdir(parents=True, exist_ok=True)
            file = os.open(place, flags)
        os.write(file, text.encode())
        os.fchmod(file, mode)
        os.close(file)

    # -- units --------------------------------------------------------------------------------

    def _systemctl(self, call: tuple[str, ...]) -> CommandResult:
        words = [word for word in call[1:] if not word.startswith("--")]
        units = [word.removesuffix(".service") for word in words[1:]]
        match words[0]:
            case "daemon-reload" | "reset-failed":
                return self.answer(call)
            case "show":
                return self.answer(call, "loaded\n" if units[0] in self.units else "not-found\n")
            case "is-active":
                is_active = units[0] in self.active
                return self.answer(call) if is_active else self._fail(call, "inactive", 3)
            case _:
                pass
        if units[0] not in self.units:
            return self._fail(call, f"Unit {units[0]}.service not found.", 5)
        match words[0]:
            case "start" | "restart":
                self.active.add(units[0])
            case "enable":
                self.enabled.add(units[0])
            case "stop":
                self.active.discard(units[0])
            case "disable":
                self.enabled.discard(units[0])
            case _:
                raise ScriptViolationError(f"systemctl is not called like this: {call}.")
        return self.answer(call)
