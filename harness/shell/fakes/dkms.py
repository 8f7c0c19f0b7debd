"""A stateful fake of DKMS. Its state is the files of the DKMS tree, as in the real DKMS."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.errors import BadInputError
from harness.shell.fakes.arguments import checks_arguments
from harness.shell.fakes.dkms_tree import TREE, DkmsTree, Source, Target, installed_in
from harness.shell.fakes.fake import Fake
from harness.shell.fakes.invocation import Syntax, unknown_subcommand, unknown_use
from harness.shell.fakes.kernel_modules import Module
from harness.shell.mocks.commands import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from harness.shell.fakes.fake import Handler
    from harness.shell.fakes.invocation import Invocation
    from harness.shell.fakes.kernel_modules import KernelModules
    from harness.shell.mocks.commands import Call

_SYNTAX = Syntax(
    options=(
        "-m,--module=", "-v,--version=", "-k,--kernelver=", "-a,--arch=", "--all", "-j=",
        "--kernelsourcedir=",
    )
)  # fmt: skip


class Dkms(Fake):
    """A fake of `dkms`.

    Code under test can add the modules in `sources`, and the modules whose `dkms.conf` the code
    writes below `/usr/src`. `kernels` lists the kernels with installed headers, beginning with the
    running kernel. When the fake installs a module for the running kernel, the fake adds the module
    to `modules`.
    """

    @checks_arguments
    def __init__(
        self,
        sources: Iterable[Source] = (),
        *,
        kernels: Sequence[str] = ("6.1.0-56-cloud-amd64",),
        arch: str = "x86_64",
        modules: KernelModules | None = None,
    ) -> None:
        super().__init__()
        if not kernels:
            raise BadInputError(
                "The list of kernels is empty; the first kernel in it has to be the running kernel.",
                source="fakes.Dkms",
                key="kernels",
            )
        self._tree = DkmsTree(self, sources, kernel=kernels[0], arch=arch)
        self._kernels = kernels
        self._modules = modules
        self._build_failures: dict[tuple[str, str], float] = {}
        for source in self._tree.sources.values():
            for kernel in source.installed_for:
                self._announce(self._tree.target(source.name, source.version, kernel))

    @property
    @override
    def commands(self) -> Mapping[str, Handler]:
        return {"dkms": self._dkms}

    @override
    def initial_files(self) -> Mapping[str, str]:
        files: dict[str, str] = {}
        for source in self._tree.sources.values():
            for kernel in source.installed_for:
                target = self._tree.target(source.name, source.version, kernel)
                files[f"{target.folder}/source"] = f"/usr/src/{target.label}"
                files[target.link] = target.built.removeprefix(f"{TREE}/{source.name}/")
                for name in source.built_names:
                    files[f"{target.built}/module/{name}.ko"] = f"{target.label}\n"
                    files[f"{installed_in(kernel)}/{name}.ko"] = f"{target.label}\n"
        return files

    def fail_builds(self, name: str, version: str, times: float) -> None:
        """Make the next `times` builds of a module fail."""
        self._build_failures[name, version] = times

    def install_module(self, name: str, version: str, kernel: str | None = None) -> Answer:
        """Do the same as `dkms install`; a test's fake of another installer may call this method."""
        return self._install_target(self._tree.target(name, version, kernel or self._kernels[0]))

    def state(self, name: str, version: str, kernel: str | None = None) -> str | None:
        """Return "added", "built" or "installed", or None if DKMS's tree lacks the module."""
        target = self._tree.target(name, version, kernel or self._kernels[0])
        if not self._tree.is_added(target):
            return None
        if self._tree.is_installed(target):
            return "installed"
        return "built" if self._tree.is_built(target) else "added"

    def _dkms(self, call: Call) -> Answer:
        if call.arguments in {("--version",), ("-V",)}:
            return Answer(stdout="dkms-3.0.10\n")
        invocation = _SYNTAX.parse(call)
        subcommands: dict[str, Callable[[Invocation], Answer]] = {
            "status": self._status,
            "add": self._add,
            "build": lambda i: self._build_target(self._wanted(i)),
            "install": lambda i: self._install_target(self._wanted(i)),
            "uninstall": lambda i: self._uninstall_target(self._wanted(i)),
            "remove": self._remove,
            "autoinstall": self._autoinstall,
        }
        name = invocation.operands[0] if invocation.operands else ""
        if name not in subcommands:
            raise unknown_subcommand(call, name, tuple(subcommands))
        return subcommands[name](invocation)

    # Subcommands

    def _status(self, invocation: Invocation) -> Answer:
        module, version = _named(invocation)
        kernel, arch = invocation.value("--kernelver"), invocation.value("--arch")
        lines: list[str] = []
        for target in self._tree.targets():
            if module not in {None, target.name} or version not in {None, target.version}:
                continue
            built = self._tree.built_targets(target)
            if not built and kernel is None:
                lines.append(f"{target.name}/{target.version}: added\n")
            for each in built:
                if kernel in {None, each.kernel} and arch in {None, each.arch}:
                    state = "installed" if self._tree.is_installed(each) else "built"
                    where = f"{each.kernel}, {each.arch}"
                    lines.append(f"{each.name}/{each.version}, {where}: {state}\n")
        return Answer(stdout="".join(lines))

    def _add(self, invocation: Invocation) -> Answer:
        target = self._wanted(invocation)
        if self._tree.is_added(target):
            return _failed(
                f"DKMS tree already contains: {target.label}\n"
                "You cannot add the same module/version combo more than once.",
                3,
            )
        return self._add_source(target)

    def _add_source(self, target: Target) -> Answer:
        if not target.built_names:
            folder = f"/usr/src/{target.label}"
            return _failed(
                f"Could not find module source directory.\nDirectory: {folder} does not exist.",
                2,
            )
        link = f"{target.folder}/source"
        self.files(link).link(link, f"/usr/src/{target.label}")
        return Answer(
            stdout=f"Creating symlink {target.folder}/source -> /usr/src/{target.label}\n"
        )

    def _build_target(self, target: Target) -> Answer:
        shown = ""
        if not self._tree.is_added(target):
            added = self._add_source(target)
            if added.exit_code:
                return added
            shown = added.stdout
        if self._tree.is_built(target):
            return Answer(
                stdout=f"Module {target.name}/{target.version} already built for kernel "
                f"{target.for_kernel}, skip. You may override by specifying --force.\n"
            )
        if target.kernel not in self._kernels:
            kernel = target.kernel
            refusal = _failed(
                f"Your kernel headers for kernel {kernel} cannot be found at "
                f"/lib/modules/{kernel}/build or /lib/modules/{kernel}/source.\n"
                f"Please install the linux-headers-{kernel} package or use the --kernelsourcedir "
                "option to tell DKMS where it's located.",
                1,
            )
            return _joined(Answer(stdout=shown), refusal)
        shown += (
            "\nBuilding module:\nCleaning build area...\n"
            f"make -j1 KERNELRELEASE={target.kernel} -C /lib/modules/{target.kernel}/build "
            f"M={target.folder}/build modules..."
        )
        failures = self._build_failures.get((target.name, target.version), 0)
        if failures > 0:
            self._build_failures[target.name, target.version] = failures - 1
            refusal = _failed(
                f"Bad return status for module build on kernel: {target.for_kernel}\n"
                f"Consult {target.folder}/build/make.log for more information.",
                10,
            )
            self.write_file(f"{target.folder}/build/make.log", "make: *** error\n")
            return _joined(Answer(stdout=f"{shown}(bad exit status: 2)\n"), refusal)
        for name in target.built_names:
            self.write_file(f"{target.built}/module/{name}.ko", f"{target.label}\n")
        return Answer(stdout=f"{shown}\nCleaning build area...\n")

    def _install_target(self, target: Target) -> Answer:
        if self._tree.is_installed(target):
            return Answer(
                stdout=f"Module {target.name}/{target.version} already installed on kernel "
                f"{target.for_kernel}, skip. You may override by specifying --force.\n"
            )
        built = Answer() if self._tree.is_built(target) else self._build_target(target)
        if built.exit_code:
            return built
        files = self.files(target.link)
        files.remove(target.link)
        files.link(target.link, target.built.removeprefix(f"{TREE}/{target.name}/"))
        folder = installed_in(target.kernel)
        shown = ""
        for name in target.built_names:
            self.write_file(f"{folder}/{name}.ko", f"{target.label}\n")
            shown += (
                f"\n{name}.ko:\nRunning module version sanity check.\n - Original module\n"
                "   - No original module exists within this kernel\n - Installation\n"
                f"   - Installing to {folder}/\n"
            )
        self._announce(target)
        return _joined(built, Answer(stdout=f"{shown}depmod...\n"))

    def _uninstall_target(self, target: Target) -> Answer:
        if not self._tree.is_installed(target):
            return Answer(
                stdout=f"Module {target.name} {target.version} is not installed for kernel "
                f"{target.for_kernel}. Skipping...\n"
            )
        folder = installed_in(target.kernel)
        shown = (
            f"Module {target.label} for kernel {target.for_kernel}.\n"
            "Before uninstall, this module version was ACTIVE on this kernel.\n"
        )
        for name in self._tree.built_names(target):
            self.files(folder).remove(f"{folder}/{name}.ko")
            shown += (
                f"\n{name}.ko:\n - Uninstallation\n   - Deleting from: {folder}/\n"
                " - Original module\n"
                "   - No original module was found for this module on this kernel.\n"
                "   - Use the dkms install command to reinstall any previous module version.\n"
            )
            if self._modules is not None and target.kernel == self._modules.kernel:
                self._modules.remove(name)
        self.files(target.link).remove(target.link)
        return Answer(stdout=f"{shown}depmod...\n")

    def _remove(self, invocation: Invocation) -> Answer:
        target = self._wanted(invocation)
        if not self._tree.is_added(target):
            return _failed(
                f"The module/version combo: {target.label} is not located in the DKMS tree.", 3
            )
        if not invocation.has("--all") and not invocation.has("--kernelver"):
            raise unknown_use(invocation.call, "the fake of 'dkms remove' needs '--all' or '-k'")
        shown = Answer()
        for each in self._tree.built_targets(target):
            if invocation.has("--all") or each.kernel == target.kernel:
                shown = _joined(shown, self._uninstall_target(each))
                self.files(each.built).remove_tree(each.built.rpartition("/")[0])
        if not self._tree.built_targets(target):
            self.files(target.folder).remove_tree(target.folder)
            folder = f"{TREE}/{target.name}"
            if not self.files(folder).names(folder):
                self.files(folder).remove_tree(folder)
            text = f"Deleting module {target.label} completely from the DKMS tree.\n"
            shown = _joined(shown, Answer(stdout=text))
        return shown

    def _autoinstall(self, invocation: Invocation) -> Answer:
        kernel = invocation.value("--kernelver") or self._kernels[0]
        shown = Answer()
        for target in self._tree.targets():
            wanted = self._tree.target(target.name, target.version, kernel)
            if not self._tree.is_installed(wanted):
                shown = _joined(shown, self._install_target(wanted))
        return shown

    # The tree

    def _wanted(self, invocation: Invocation) -> Target:
        module, version = _named(invocation)
        if module is None or version is None:
            raise unknown_use(invocation.call, "the fake of 'dkms' needs a module and a version")
        kernel, _, arch = (invocation.value("--kernelver") or self._kernels[0]).partition("/")
        return self._tree.target(module, version, kernel, arch or invocation.value("--arch"))

    def _announce(self, target: Target) -> None:
        """Add the target's modules to the fake of kernel modules, if the target is for the running kernel."""
        if self._modules is None or target.kernel != self._modules.kernel:
            return
        for name in target.built_names:
            known = self._modules.module(name) or Module()
            path = f"{installed_in(target.kernel)}/{name}.ko"
            vermagic = f"{target.kernel} SMP preempt mod_unload modversions"
            fields = {**known.fields, "version": target.version, "vermagic": vermagic}
            self._modules.add(name, replace(known, path=path, fields=fields, has_file=True))


def _named(invocation: Invocation) -> tuple[str | None, str | None]:
    """Return the module and the version, which are given by options or as `module/version`."""
    module, version = invocation.value("--module"), invocation.value("--version")
    if module is not None and version is None:
        module, _, version = module.partition("/")
    for operand in invocation.operands[1:]:
        if operand.startswith((".", "/")):
            raise unknown_use(
                invocation.call, f"the fake of 'dkms' does not know the path '{operand}'"
            )
        module, _, version = operand.partition("/")
    return module, version or None


def _failed(message: str, exit_code: int) -> Answer:
    return Answer(stderr=f"Error! {message}\n", exit_code=exit_code)


def _joined(first: Answer, second: Answer) -> Answer:
    return Answer(
        stdout=first.stdout + second.stdout,
        stderr=first.stderr + second.stderr,
        exit_code=second.exit_code or first.exit_code,
    )
