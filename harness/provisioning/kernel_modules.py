"""Kernel modules of the driver, as DKMS, modinfo and the running kernel report them."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .nvidia import DKMS_TREE, KERNELS_DIRECTORY

if TYPE_CHECKING:
    from .command import Runner
    from .node_files import NodeFiles

MODULE = "nvidia"
UNLOAD_ORDER = (
    *("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia_peermem", "nvidia_vgpu_vfio"),
    MODULE,
)
"""The driver's modules, each before the modules on which it depends. Other modules have similar names:
`nvidia_wmi_ec_backlight` (a laptop's backlight) belongs to the kernel, `nvidia_fs` belongs to
GPUDirect Storage, and `nvidia_current` belongs to Debian's packages."""

QUERY_TIMEOUT_S = 60.0
_DKMS_LINE = re.compile(
    r"(?P<module>[^\s,/:]+)(?:/|, ?)(?P<version>[^\s,:]+)"
    r"(?:, ?(?P<kernel>[^\s,:]+), ?(?P<arch>[^\s,:]+))?"
    # DKMS 3.0.1 to 3.0.8 print 'Deprecated feature' directly after the state.
    r": ?(?P<state>added|built|installed)(?![a-z])"
)
_NO_LETTER = re.compile(r"[^A-Za-z\0\1]")
_RESIDENT_VERSION = re.compile(r"NVRM version:.*?\s(\d+(?:\.\d+)+)(?:\s|$)")


class DkmsState(enum.Enum):
    """The state of a module for one kernel in DKMS."""

    ADDED = "added"
    BUILT = "built"
    INSTALLED = "installed"


@dataclass(frozen=True, kw_only=True)
class DkmsEntry:
    """One line of `dkms status`; `kernel` and `arch` are None for a module that is not built."""

    module: str
    version: str
    kernel: str | None
    arch: str | None
    state: DkmsState


def parse_dkms_status(text: str) -> tuple[DkmsEntry, ...]:
    """Parse the output of `dkms status` of DKMS 2 (`nvidia, 1.2, …`) or 3 (`nvidia/1.2, …`).

    Lines of another form, such as warnings of DKMS, are ignored.
    """
    entries = []
    for line in text.splitlines():
        match = _DKMS_LINE.match(line.strip())
        if match:
            entries.append(
                DkmsEntry(
                    module=match["module"],
                    version=match["version"],
                    kernel=match["kernel"],
                    arch=match["arch"],
                    state=DkmsState(match["state"]),
                )
            )
    return tuple(entries)


@dataclass(frozen=True, kw_only=True)
class ModuleFile:
    """The fields of a module on disk, as `modinfo` prints them; a missing field is None."""

    version: str | None
    vermagic: str | None

    @property
    def kernel(self) -> str | None:
        """Return the kernel that the module was built for."""
        words = (self.vermagic or "").split()
        return words[0] if words else None


def parse_modinfo(text: str) -> ModuleFile:
    """Parse a module's version and vermagic from the output of `modinfo`."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            fields.setdefault(key.strip(), value.strip())
    return ModuleFile(
        version=fields.get("version") or None, vermagic=fields.get("vermagic") or None
    )


@dataclass(frozen=True, kw_only=True)
class ModuleProof:
    """The state of the driver's module for one kernel, as the tools on the node report it."""

    is_linker_ready: bool
    file: ModuleFile | None
    dkms: tuple[DkmsEntry, ...]
    lost: tuple[str, ...] = ()
    """The driver's modules that DKMS has installed for the kernel, and whose files are gone."""

    def is_installed(self, *, version: str, kernel: str, arch: str) -> bool:
        """Return whether DKMS has the driver's module installed, not only added or built.

        `dkms status` exits with 0 whatever it lists, so its exit code proves nothing.
        """
        return any(
            entry.module == MODULE
            and (entry.version, entry.kernel, entry.arch) == (version, kernel, arch)
            and entry.state is DkmsState.INSTALLED
            for entry in self.dkms
        )


def prove_module(
    runner: Runner, files: NodeFiles, kernel: str, *, is_read_only: bool
) -> ModuleProof:
    """Collect the state of the driver's module for `kernel` from the tools on the node.

    With `is_read_only`, `ldconfig` does not rewrite the linker's cache. If a tool fails or is
    missing, that tool's part of the result stays empty, and no error is raised.
    """
    linker = ("ldconfig", "-N", "-X") if is_read_only else ("ldconfig",)
    linker_result = runner.run(linker, timeout_s=QUERY_TIMEOUT_S)
    dkms = runner.run(("dkms", "status"), timeout_s=QUERY_TIMEOUT_S)
    modinfo = runner.run(("modinfo", "-k", kernel, MODULE), timeout_s=QUERY_TIMEOUT_S)
    entries = parse_dkms_status(dkms.stdout) if dkms.ok else ()
    return ModuleProof(
        is_linker_ready=linker_result.ok,
        file=parse_modinfo(modinfo.stdout) if modinfo.ok else None,
        dkms=entries,
        lost=_lost_modules(files, entries, kernel),
    )


def _lost_modules(
    files: NodeFiles, entries: tuple[DkmsEntry, ...], kernel: str
) -> tuple[str, ...]:
    """Return the modules that DKMS built for a kernel but that the kernel's folder lacks.

    `dkms status` reports a driver as installed even if the files of its modules are gone. If the
    kernel's folder contains none of the driver's modules, the result is empty, because DKMS may
    have installed the modules in another folder.
    """
    if not installed_files(files, kernel):
        return ()
    installed = _module_names(files.matching(module_directory(kernel), "*.ko*"))
    built = {
        name
        for entry in entries
        if (entry.module, entry.kernel, entry.state) == (MODULE, kernel, DkmsState.INSTALLED)
        for name in _module_names(
            files.matching(f"{DKMS_TREE}/{entry.version}/{kernel}/{entry.arch}/module", "*.ko*")
        )
    }
    return tuple(sorted(built - installed))


def _module_names(paths: tuple[str, ...]) -> set[str]:
    """Return the names of module files, without `.ko` and without a suffix such as `.xz`."""
    return {path.rpartition("/")[2].partition(".ko")[0] for path in paths}


@dataclass(frozen=True, kw_only=True)
class LoadedModule:
    """One line of /proc/modules."""

    name: str
    references: int
    holders: tuple[str, ...]


def parse_proc_modules(text: str) -> tuple[LoadedModule, ...]:
    """Parse /proc/modules: name, size, references and the modules that hold a reference."""
    modules = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4 or not (words[2].isdecimal() or words[2] == "-"):
            continue
        # A kernel that cannot unload modules does not count references.
        references = 0 if words[2] == "-" else int(words[2])
        holders = () if words[3] == "-" else tuple(h for h in words[3].split(",") if h)
        modules.append(LoadedModule(name=words[0], references=references, holders=holders))
    return tuple(modules)


def driver_modules(modules: tuple[LoadedModule, ...]) -> tuple[LoadedModule, ...]:
    """Return the driver's modules among the loaded modules, in the order in which they are unloaded."""
    by_name = {module.name: module for module in modules}
    return tuple(by_name[name] for name in UNLOAD_ORDER if name in by_name)


def is_busy(modules: tuple[LoadedModule, ...]) -> bool:
    """Return whether the driver's modules are used by anything except each other.

    The driver's other modules hold one to three references to `nvidia`, and even idle modules have
    device nodes. So the GPU may be idle even if `nvidia` has references, or if `/dev/nvidia0`
    exists (AgentBaker 8955).
    """
    ours = {module.name for module in modules}
    return any(
        not ours.issuperset(module.holders) or module.references > len(module.holders)
        for module in modules
    )


def read_loaded(files: NodeFiles) -> tuple[LoadedModule, ...]:
    """Return the driver's modules that are loaded now, in unload order."""
    return driver_modules(parse_proc_modules(files.read_or_empty("/proc/modules")))


def read_resident_version(files: NodeFiles) -> str | None:
    """Return the version of the loaded driver, or None if no version or no driver is found."""
    version = files.read_or_empty("/sys/module/nvidia/version").strip()
    if version:
        return version
    match = _RESIDENT_VERSION.search(files.read_or_empty("/proc/driver/nvidia/version"))
    return match[1] if match else None


def module_directory(kernel: str) -> str:
    """Return the folder where DKMS installs modules for a kernel."""
    return f"{KERNELS_DIRECTORY}/{kernel}/updates/dkms"


def installed_files(files: NodeFiles, kernel: str) -> tuple[str, ...]:
    """Return the paths of the driver's modules that DKMS installed for a kernel."""
    names = {name.replace("_", "-") for name in UNLOAD_ORDER}
    found = files.matching(module_directory(kernel), "*.ko*")
    return tuple(path for path in found if _module_names((path,)) <= names)


def kernels(files: NodeFiles) -> tuple[str, ...]:
    """Return the kernels that have a module folder."""
    return files.names(KERNELS_DIRECTORY)


def newest_kernel_with_headers(files: NodeFiles) -> str | None:
    """Return the newest kernel, by version sort, that has headers to build a module.

    An Ubuntu kernel without its headers package still has the link `build`, but this link dangles.
    """
    buildable = [k for k in kernels(files) if files.at(f"{KERNELS_DIRECTORY}/{k}/build").is_dir()]
    return max(buildable, key=version_key, default=None)


def version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts versions as `sort -V` does: consecutive digits form one number.

    Letters sort before other characters: `-060500rc5-generic` is older than `-060500-generic`. A
    version is newer than its pre-releases, whose names contain a tilde.
    """
    return tuple(
        (1, int(part), "")
        if part.isdecimal()
        else (0, 0, _NO_LETTER.sub("\U0010ffff\\g<0>", part))
        for part in re.findall(r"[0-9]+|[^0-9]+", version.replace("~", "\0") + "\1")
    )
