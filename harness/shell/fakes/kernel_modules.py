"""A stateful fake of lsmod, modprobe, rmmod, modinfo and depmod, with the kernel's modules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.errors import BadInputError
from harness.shell.fakes.arguments import check_fields, checks_arguments
from harness.shell.fakes.fake import Fake
from harness.shell.fakes.invocation import Syntax, unknown_use
from harness.shell.mocks.commands import Answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.shell.fakes.fake import Handler
    from harness.shell.mocks.commands import Call

_MODPROBE = Syntax(
    options=(
        "-r,--remove",
        "-q,--quiet",
        "-a,--all",
        "-n,--dry-run",
        "-D,--show-depends",
        "-v,--verbose",
        "-i,--ignore-install",
        "-b,--use-blacklist",
        "-V,--version",
    )
)
_RMMOD = Syntax(options=("-s,--syslog", "-V,--version"))
_MODINFO = Syntax(options=("-F,--field=", "-k,--set-version=", "-n,--filename", "-V,--version"))
_DEPMOD = Syntax(options=("-a,--all", "-A,--quick", "-b,--basedir=", "-V,--version"))
_PLAIN = Syntax()
_PROC_MODULES = "/proc/modules"
_VERSION = "kmod version 30\n+ZSTD +XZ -ZLIB +LIBCRYPTO -EXPERIMENTAL\n"


@dataclass(kw_only=True)
class Module:
    """A module of a kernel.

    `needs` lists the modules that this module depends on, like `modinfo -F depends`. `users` counts
    the users of the module that are not modules, such as processes that have opened the module's
    device. If `has_file` is true, the module exists only while the file `path` exists in the root.
    """

    needs: Sequence[str] = ()
    size: int = 16384
    path: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    users: int = 0
    has_file: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


class KernelModules(Fake):
    """A fake of lsmod, modprobe, rmmod, modinfo and depmod.

    `modules` maps names to the modules that exist. `loaded` lists the names of the modules that are
    loaded at first, in the order of loading. If `in_proc` is true, the fake lists the loaded
    modules in `/proc/modules`; then the host's kernel must provide `/proc/modules`.
    """

    @checks_arguments
    def __init__(
        self,
        modules: Mapping[str, Module] | None = None,
        *,
        loaded: Iterable[str] = (),
        kernel: str = "6.1.0-56-cloud-amd64",
        in_proc: bool = False,
    ) -> None:
        super().__init__()
        self._in_proc = in_proc
        self.kernel = kernel
        self._modules = {
            canonical(name): replace(module) for name, module in (modules or {}).items()
        }
        self._depths()
        self._loaded: list[str] = []
        for name in loaded:
            self.load(name)

    @property
    @override
    def commands(self) -> Mapping[str, Handler]:
        return {
            "lsmod": self._lsmod,
            "modprobe": self._modprobe,
            "rmmod": self._rmmod,
            "modinfo": self._modinfo,
            "depmod": self._depmod,
        }

    @override
    def initial_files(self) -> Mapping[str, str]:
        return {_PROC_MODULES: self.proc_modules} if self._in_proc else {}

    # Methods for tests and other fakes

    def add(self, name: str, module: Module | None = None) -> None:
        """Add a module, as a build or an installation does."""
        self._modules[canonical(name)] = module or Module()
        self._depths()

    def remove(self, name: str) -> None:
        """Remove a module; a loaded module stays loaded."""
        self._modules.pop(canonical(name), None)

    def module(self, name: str) -> Module | None:
        """Return a module, or None if no module has this name."""
        found = self._modules.get(canonical(name))
        if found is not None and found.has_file and not self.files(found.path).is_file(found.path):
            return None
        return found

    def load(self, name: str) -> None:
        """Load a module and its dependencies. Raises KeyError if one of these modules does not exist."""
        for each in [*self._needs(canonical(name)), canonical(name)]:
            if self.module(each) is None:
                raise KeyError(f"There is no module '{each}'.")
            if each not in self._loaded:
                self._loaded.append(each)
        self._show()

    def hold(self, name: str) -> None:
        """Add a process that uses a module; then the module can't be unloaded."""
        self._modules[canonical(name)].users += 1
        self._show()

    def release(self, name: str) -> None:
        """End a process that uses a module."""
        self._modules[canonical(name)].users -= 1
        self._show()

    def is_loaded(self, name: str) -> bool:
        return canonical(name) in self._loaded

    @property
    def loaded(self) -> tuple[str, ...]:
        """The names of the loaded modules, in the order of loading."""
        return tuple(self._loaded)

    @property
    def proc_modules(self) -> str:
        """The content of `/proc/modules`."""
        lines = []
        for name in reversed(self._loaded):
            holders = "".join(f"{holder}," for holder in reversed(self._holders(name))) or "-"
            lines.append(
                f"{name} {self._size(name)} {self._uses(name)} {holders} Live 0x0000000000000000\n"
            )
        return "".join(lines)

    # Commands

    def _lsmod(self, call: Call) -> Answer:
        if _PLAIN.parse(call).operands:
            raise unknown_use(call, "lsmod takes no operands")
        lines = ["Module                  Size  Used by\n"]
        for name in reversed(self._loaded):
            holders = ",".join(self._holders(name))
            used = f"{self._uses(name)} {holders}".rstrip()
            lines.append(f"{name:<19} {self._size(name):>8}  {used}\n")
        return Answer(stdout="".join(lines))

    def _modprobe(self, call: Call) -> Answer:
        invocation = _MODPROBE.parse(call)
        if invocation.has("--version"):
            return Answer(stdout=_VERSION)
        if not invocation.operands:
            return _failed("modprobe: ERROR: missing parameters. See -h.")
        if invocation.has("--remove"):
            before = self.loaded
            answer = self._modprobe_remove(invocation.operands)
            gone = [name for name in reversed(before) if name not in self._loaded]
            removed = "".join(f"rmmod {name}\n" for name in gone)
            return replace(answer, stdout=removed) if invocation.has("--verbose") else answer
        is_all = invocation.has("--all")
        names = invocation.operands if is_all else invocation.operands[:1]
        parameters = " ".join(invocation.operands[len(names) :])
        lines: list[str] = []
        errors: list[str] = []
        for name in map(canonical, names):
            wanted = [*self._needs(name), name]
            if not invocation.has("--show-depends"):
                wanted = [each for each in wanted if each not in self._loaded]
            shown = [
                f"insmod {self._file(n)} {parameters if n == name else ''}\n"
                for n in wanted
                if self.module(n) is not None
            ]
            if any(self.module(n) is None for n in [*self._needs(name), name]):
                level = "WARNING" if is_all else "FATAL"
                errors.append(
                    f"modprobe: {level}: Module {name} not found in directory "
                    f"/lib/modules/{self.kernel}\n"
                )
                continue
            if invocation.has("--show-depends") or invocation.has("--verbose"):
                lines += shown
            if not invocation.has("--show-depends") and not invocation.has("--dry-run"):
                self.load(name)
        complaint = "" if invocation.has("--quiet") else "".join(errors)
        return Answer(stdout="".join(lines), stderr=complaint, exit_code=1 if errors else 0)

    def _modprobe_remove(self, names: Sequence[str]) -> Answer:
        """Unload modules, then their unused dependencies; check each dependency only once, as kmod does."""
        for name in map(canonical, names):
            if self.module(name) is None:
                return _failed(f"modprobe: FATAL: Module {name} not found.")
            if name not in self._loaded:
                continue
            for holder in self._holders(name):
                self._unload(holder)
            if self._uses(name):
                return _failed(f"modprobe: FATAL: Module {name} is in use.")
            self._unload(name)
            for needed in self._needs(name):
                if needed in self._loaded and not self._uses(needed):
                    self._unload(needed)
        return Answer()

    def _rmmod(self, call: Call) -> Answer:
        invocation = _RMMOD.parse(call)
        if invocation.has("--version"):
            return Answer(stdout=_VERSION)
        if not invocation.operands:
            return _failed("rmmod: ERROR: missing module name.")
        errors: list[str] = []
        for name in map(canonical, invocation.operands):
            holders = self._holders(name)
            if name not in self._loaded:
                errors.append(f"rmmod: ERROR: Module {name} is not currently loaded\n")
            elif holders:
                errors.append(f"rmmod: ERROR: Module {name} is in use by: {' '.join(holders)}\n")
            elif self._uses(name):
                errors.append(f"rmmod: ERROR: Module {name} is in use\n")
            else:
                self._unload(name)
        shown = "" if invocation.has("--syslog") else "".join(errors)
        return Answer(stderr=shown, exit_code=1 if errors else 0)

    def _modinfo(self, call: Call) -> Answer:
        invocation = _MODINFO.parse(call)
        if invocation.has("--version"):
            return Answer(stdout=_VERSION)
        wanted = invocation.value("--field")
        if not invocation.operands:
            raise unknown_use(call, "the fake of 'modinfo' needs the name of a module")
        kernel = invocation.value("--set-version") or self.kernel
        lines: list[str] = []
        for operand in invocation.operands:
            name = self._name_of(operand)
            module = self.module(name) if kernel == self.kernel or "/" in operand else None
            if module is None:
                return _failed(f"modinfo: ERROR: Module {name} not found.")
            fields = {"filename": self._file(name), **module.fields}
            fields.setdefault("depends", ",".join(map(canonical, module.needs)))
            fields.setdefault("name", name)
            if wanted is None and not invocation.has("--filename"):
                lines += [f"{f'{key}:':<16}{value}\n" for key, value in fields.items()]
                continue
            value = fields.get(wanted or "filename")
            lines += [] if value is None else [f"{value}\n"]
        return Answer(stdout="".join(lines))

    def _depmod(self, call: Call) -> Answer:
        invocation = _DEPMOD.parse(call)
        if invocation.has("--version"):
            return Answer(stdout=_VERSION)
        for kernel in invocation.operands:
            if kernel != self.kernel:
                raise unknown_use(call, f"the fake knows only the kernel '{self.kernel}'")
        return Answer()

    # State

    def _unload(self, name: str) -> None:
        self._loaded.remove(name)
        self._show()

    def _show(self) -> None:
        if self._in_proc:
            self.show_file(_PROC_MODULES, self.proc_modules)

    def _needs(self, name: str) -> list[str]:
        """Return all direct and indirect dependencies of a module, in depmod's order."""
        found: set[str] = set()
        ahead = [*self._direct(name)]
        while ahead:
            needed = ahead.pop()
            found.add(needed)
            ahead += [other for other in self._direct(needed) if other not in found]
        depths = self._depths() if found else {}
        return sorted(found, key=lambda each: (depths[each], each))

    def _depths(self) -> dict[str, int]:
        """Return a mapping from each module to the number of levels of its dependencies.

        Raises BadInputError if a module directly or indirectly needs itself.
        """
        depths: dict[str, int] = {}
        try:
            for name in TopologicalSorter(
                {n: self._direct(n) for n in self._modules}
            ).static_order():
                depths[name] = max((1 + depths[each] for each in self._direct(name)), default=0)
        except CycleError as error:
            cycle = " needs ".join(f"'{name}'" for name in reversed(error.args[1]))
            raise BadInputError(
                f"A module needs itself: {cycle}.", source="fakes.KernelModules", key="modules"
            ) from None
        return depths

    def _direct(self, name: str) -> list[str]:
        module = self._modules.get(name)
        return [canonical(needed) for needed in module.needs] if module is not None else []

    def _holders(self, name: str) -> list[str]:
        return [other for other in self._loaded if name in self._direct(other)]

    def _uses(self, name: str) -> int:
        module = self._modules.get(name)
        return len(self._holders(name)) + (module.users if module is not None else 0)

    def _size(self, name: str) -> int:
        module = self._modules.get(name)
        return module.size if module is not None else Module().size

    def _name_of(self, operand: str) -> str:
        """Return the module's name for an operand of modinfo; the operand is a name or a file's path."""
        if "/" not in operand:
            return canonical(operand)
        return next((name for name in self._modules if self._file(name) == operand), operand)

    def _file(self, name: str) -> str:
        return self._modules[name].path or f"/lib/modules/{self.kernel}/kernel/{name}.ko"


def canonical(name: str) -> str:
    """Return a module's name as the kernel writes it, with `_` instead of `-`."""
    return name.replace("-", "_")


def _failed(message: str) -> Answer:
    return Answer(stderr=f"{message}\n", exit_code=1)
