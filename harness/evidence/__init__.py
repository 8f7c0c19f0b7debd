"""The evidence of one node: a folder on disk, and a typed view of this folder.

This package accesses no machine, so the evidence folder alone is enough to check a failure again.
The folder has:

    <folder>/provisioner.json  how to read the result; without this file, the harness's declaration applies
    <folder>/manifest.json     the files that were gathered, and the files that were missing
    <folder>/host/…            QEMU's command line, stderr, serial console, QMP events, GPU traces
    <folder>/commands/NAME     output of a command in the guest; NAME.exit-code beside it
    <folder>/files/…           files of the guest under their own paths
    <folder>/stat.txt          one line for every path that was found (`node_state.PathStat`)
    <folder>/unreadable.txt    paths that the user on the node had no permission to read
    <folder>/requested.json    the commands, files and paths that were looked for in the guest
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from harness.cloudinit import CloudInitResult
from harness.errors import HarnessError
from harness.evidence import node_state
from harness.evidence.folder import NOT_FOUND, EvidenceFolder, read_number
from harness.evidence.gaps import refuse_closed
from harness.evidence.outcome import (
    ProvisioningOutcome,
    parse_events,
    parse_log_decision,
    parse_log_steps,
)
from harness.evidence.paths import GatheredPaths
from harness.evidence.runs import Runs
from harness.evidence.units import (
    SHOWN_UNITS,
    UNIT_JOBS,
    check_unit_name,
    parse_shown_units,
    parse_unit_jobs,
)
from harness.foreign_files import read_plain
from harness.gpu.trace_file import parse_trace
from harness.limits import DATA_FILE
from harness.provisioner import EXIT_CODE_PATH
from harness.provisioner.declaration import read_declaration
from harness.provisioner.failed_command import FAILED_COMMAND, parse_failed_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.evidence.node_state import DkmsBuild, LoadedModule, PciFunction
    from harness.evidence.outcome import ReportedDecision, ReportedStep
    from harness.evidence.units import ShownUnit
    from harness.gpu.trace import AccessTrace
    from harness.provisioner.declaration import Declaration
    from harness.provisioner.failed_command import FailedCommand

RECORD_PATH = "/opt/azure/aks-gpu/dkms-marker"
#: Suffix of a GPU's access trace file in the folder `host`; the GPU's device id precedes the suffix.
TRACE_SUFFIX = "-trace.json"
#: The file in the folder `host` that exists if other work of the host delayed the machine most of the
#: time; the file has one sentence.
BUSY_HOST = "busy-host.txt"
#: The kernel's folder of PCI functions, for nodes without `lspci`.
PCI_FOLDER = "/sys/bus/pci/devices"
#: The gathered command that reads the configuration space of each PCI function.
PCI_CONFIG = "pci-config"
#: The folders in which container runtimes look for CDI specs.
CDI_FOLDERS = ("/etc/cdi", "/run/cdi")
#: The module's name in Debian's packages, in DKMS and on disk; the loaded module is called `nvidia`.
DEBIAN_MODULE = "nvidia-current"
#: The folder that a driver container shares with its node (GPU operator).
DRIVER_CONTAINER = "/run/nvidia/driver"
#: The folders of the driver's programs if they are not in /usr/bin: in a driver container, on AKS,
#: on GKE.
OTHER_PROGRAM_FOLDERS = (
    f"{DRIVER_CONTAINER}/usr/bin",
    "/usr/local/nvidia/bin",
    "/home/kubernetes/bin/nvidia/bin",
)
#: This path exists if and only if systemd is the init system; see sd_booted(3).
SYSTEMD_PATH = "/run/systemd/system"
CLOUD_INIT_RESULT_PATH = "/run/cloud-init/result.json"
CLOUD_INIT_OUTPUT_PATH = "/var/log/cloud-init-output.log"

#: modinfo's exit code for a module that does not exist, and also for other errors.
_NO_SUCH_MODULE = 1
#: modinfo's error for a module that is not in `modules.dep`, and its errors for a module that is
#: still in `modules.dep` but was removed.
_NO_MODULE = (
    "not found",
    *(
        f"could not get modinfo from '{name}': No such file or directory"
        for name in ("nvidia", DEBIAN_MODULE)
    ),
)
_GPU_FOLDERS = "/proc/driver/nvidia/gpus/*/information"
#: `timeout`'s exit codes for a program that does not exist or can't be run, for example because the
#: user may not enter its folder.
_NOT_STARTED = {126, NOT_FOUND}


class Evidence(EvidenceFolder):
    """The facts about a node and its provisioner that an evidence folder proves."""

    def __init__(self, folder: Path, *, run: int | None = None) -> None:
        super().__init__(folder)
        self._runs = Runs(folder / "files")
        self._run = self._runs.chosen(run)

    def of_run(self, number: int | None) -> Evidence:
        """Return the evidence of provisioner run `number`, or this object if `number` is None.

        The exit code, outcome, decision, steps, log, `AKS_GPU_PREBAKE` lines and events depend on
        the run; the default is the latest run. Evidence that does not depend on the run shows the
        node at the time when the evidence was gathered. Raises HarnessError if the provisioner has
        no run `number`.
        """
        return self if number is None else Evidence(self.folder, run=number)

    @property
    def runs(self) -> Sequence[int]:
        """Return the numbers of the provisioner's runs, oldest first; the first number is 1."""
        return self._runs.numbers

    @property
    def gpu_traces(self) -> Mapping[str, AccessTrace]:
        """Return the access trace of each emulated GPU, by device id."""
        return {
            file.name.removesuffix(TRACE_SUFFIX): parse_trace(self._text(file), str(file))
            for file in sorted((self.folder / "host").glob(f"*{TRACE_SUFFIX}"))
        }

    @property
    def provisioner(self) -> Declaration:
        """Return the declaration of how to read the result of this node's provisioner."""
        return read_declaration(self.folder)

    @property
    def outcome(self) -> ProvisioningOutcome | None:
        """Return the provisioner's outcome file, or None if the file is missing or not declared."""
        declared = self.provisioner.outcome.file
        text = None if declared is None else self.file(declared.path)
        if self._run is not None:
            text = self._runs.outcome(self._run, text)
        if declared is None or text is None:
            return None
        return ProvisioningOutcome.from_json(text, declared)

    @property
    def log_path(self) -> str:
        """Return the path of the provisioner's log: the declared log, or else cloud-init's output."""
        log = self.provisioner.outcome.log
        return CLOUD_INIT_OUTPUT_PATH if log is None or log.path is None else log.path

    @property
    def log(self) -> str:
        """Return the provisioner's log, which may be truncated."""
        path = self.log_path
        text = self.file(path) or ""
        if self._run is None:
            return text
        if path == CLOUD_INIT_OUTPUT_PATH:
            return self._runs.output(self._run, text)
        kept = self.folder / "files" / path.lstrip("/")
        content = read_plain(kept, below=self.folder) if kept.is_file() else b""
        return self._runs.log(self._run, content).decode(errors="replace")

    @property
    def output(self) -> str:
        """Return the output of the provisioner."""
        text = self.file(CLOUD_INIT_OUTPUT_PATH) or ""
        return text if self._run is None else self._runs.output(self._run, text)

    @property
    def whole_log(self) -> str:
        """Return the provisioner's log; raises HarnessError if the log is truncated."""
        self.refuse_cut(self.log_path)
        return self.log

    @property
    def log_decision(self) -> ReportedDecision | None:
        """Return the last decision that the declared pattern finds in the provisioner's log.

        Raises BadInputError if no pattern is declared, and HarnessError if the log is truncated.
        """
        return parse_log_decision(self.whole_log, self.provisioner.require("log.decision"))

    @property
    def steps(self) -> Sequence[ReportedStep] | None:
        """Return the provisioner's steps, from the outcome file or else from the log.

        Returns None if the node lacks the declared outcome file. Raises BadInputError if steps are
        declared for neither the outcome file nor the log, and HarnessError if the log is truncated.
        """
        declared = self.provisioner.outcome
        if declared.file is not None and declared.file.steps is not None:
            found = self.outcome
            return None if found is None else found.steps
        pattern = self.provisioner.require("log.step")
        return parse_log_steps(self.whole_log, pattern)

    @property
    def step_starts(self) -> Mapping[str, float]:
        """Return the reported start time of each step by the step's name, in seconds since the epoch."""
        return {
            step.name: step.started_s for step in self.steps or () if step.started_s is not None
        }

    @property
    def exit_code(self) -> int | None:
        """Return the provisioner's exit code, as a shell reports it, or None if the provisioner still runs."""
        if self._run is None or self._runs.is_latest(self._run):
            # The file is below /run, so it was written in this boot.
            text = self.file(EXIT_CODE_PATH)
        else:
            text = self._runs.stored(self._run, "exit-code")
        if text is None or not text.strip():
            return None
        return read_number(text, f"exit code in '{EXIT_CODE_PATH}'")

    @property
    def failed_command(self) -> FailedCommand | None:
        """Return the command at which `set -e` ended the provisioner's bash script, or None if unknown."""
        number = self._runs.chosen(self._run)
        text = None if number is None else self._runs.stored(number, FAILED_COMMAND)
        failed = None if text is None else parse_failed_command(text)
        return failed if failed is not None and failed.exit_code == self.exit_code else None

    @property
    def cloud_init(self) -> CloudInitResult | None:
        text = self.file(CLOUD_INIT_RESULT_PATH)
        return None if text is None else CloudInitResult.from_json(text)

    @property
    def running_kernel(self) -> str:
        return self._full_answer_of("uname-r").strip()

    @property
    def booted_at_s(self) -> float:
        """Return when the guest booted, in seconds since the epoch by the guest's clock."""
        return node_state.parse_boot_time(self._kernel_file("/proc/stat"))

    @property
    def record(self) -> Mapping[str, str] | None:
        """Return the fields of the prebake record, the file RECORD_PATH, or None if there is no record."""
        text = self.file(RECORD_PATH)
        if text is None:
            return None
        # Split the text like provisioning, only at "\n": other line breaks are a part of the
        # value.
        lines = text.removeprefix("\ufeff").split("\n")
        pairs = [line.partition("=") for line in lines if "=" in line]
        return {key: value for key, _, value in reversed(pairs)}

    @property
    def prebake_lines(self) -> list[Mapping[str, str]]:
        """Return the fields of the `AKS_GPU_PREBAKE` lines that the run printed, oldest first.

        If the provisioner's output is truncated, only the lines at the beginning are returned;
        `refuse_cut` detects truncated files.
        """
        return node_state.parse_prebake_lines(self.output)

    @property
    def event_files(self) -> Mapping[str, str]:
        """Return the texts of the provisioner's event files by path, in the order of the paths.

        Raises BadInputError if no event files are declared.
        """
        files = self.matching(self.provisioner.events.path)
        return files if self._run is None else self._runs.events(self._run, files)

    @property
    def event_names(self) -> list[str]:
        """Return the name of every event of the provisioner, in the order of the event files.

        Raises BadInputError if no event files are declared. Raises HarnessError if an event file
        does not have the declared form; the message names the file.
        """
        declared = self.provisioner.events
        names: list[str] = []
        for path, text in self.event_files.items():
            self.refuse_cut(path)
            names += parse_events(text, declared, path)
        return names

    @property
    def loaded_modules(self) -> Mapping[str, LoadedModule]:
        return node_state.parse_modules(self._kernel_file("/proc/modules"))

    @property
    def dkms_builds(self) -> list[DkmsBuild]:
        # DKMS prints nothing for a user who may not read DKMS's folder.
        refuse_closed(self.folder, "/var/lib/dkms/nvidia/*")
        return node_state.parse_dkms_status(self.answer_of("dkms-status"))

    @property
    def pci_functions(self) -> list[PciFunction]:
        """Return the functions on the PCI bus, from lspci or, on a node without lspci, from sysfs.

        Raises HarnessError if the node has neither lspci nor sysfs.
        """
        functions = self._listed_functions()
        # A virtual function has a link `physfn` to its device. Evidence from earlier versions lacks the links.
        links = self.paths.seen(f"{PCI_FOLDER}/*/physfn") if self._has_paths else ()
        virtual = {PurePosixPath(path).parent.name for path in links}
        return [replace(each, is_virtual=each.address in virtual) for each in functions]

    def _listed_functions(self) -> list[PciFunction]:
        if self.exit_code_of("lspci") not in _NOT_STARTED:
            return node_state.parse_lspci(self.answer_of("lspci"))
        if PCI_FOLDER not in self.paths:
            raise HarnessError(
                f"The node ran no 'lspci' and has no '{PCI_FOLDER}', so the node's PCI functions are "
                "unknown."
            )
        # Evidence from earlier versions lacks this command.
        is_gathered = self._has_output_of(PCI_CONFIG)
        answering = node_state.parse_answering(self.output_of(PCI_CONFIG)) if is_gathered else {}
        functions = [
            node_state.parse_pci_event(text, path)
            for path, text in self.matching(f"{PCI_FOLDER}/*/uevent").items()
        ]
        return [replace(each, is_answering=answering.get(each.slot)) for each in functions]

    @property
    def driver_gpu_names(self) -> Mapping[str, str | None]:
        """Return the name of each GPU to which the driver is bound, by the GPU's PCI address."""
        return {
            PurePosixPath(path).parent.name: node_state.parse_gpu_name(text)
            for path, text in self.matching(_GPU_FOLDERS).items()
        }

    @property
    def driver_version(self) -> str | None:
        """Return the version of the loaded driver, or None if no driver is loaded."""
        text = self.file("/proc/driver/nvidia/version")
        return None if text is None else node_state.parse_driver_version(text)

    @property
    def cdi_devices(self) -> Mapping[str, list[str] | None]:
        """Return the full names of the CDI devices of each spec file, by the path of the file.

        The value is None for a file that is not a valid spec. Raises HarnessError for a file that
        is truncated, or is too long to be parsed.
        """
        return {
            path: node_state.parse_cdi_devices(text) for path, text in self._cdi_specs().items()
        }

    @property
    def cdi_kinds(self) -> Mapping[str, set[str]]:
        """Return the kinds of devices in each CDI spec file, even an invalid file, by the file's path."""
        return {path: node_state.parse_cdi_kinds(text) for path, text in self._cdi_specs().items()}

    @property
    def cdi_device_nodes(self) -> Mapping[str, set[str]]:
        """Return the device nodes that each CDI spec file injects into containers, by the file's path."""
        return {
            path: node_state.parse_cdi_device_nodes(text)
            for path, text in self._cdi_specs().items()
        }

    @property
    def cdi_driver_versions(self) -> Mapping[str, set[str]]:
        """Return the driver versions of the libraries that each CDI spec file mounts, by the file's path."""
        return {
            path: node_state.parse_cdi_driver_versions(text)
            for path, text in self._cdi_specs().items()
        }

    def _cdi_specs(self) -> Mapping[str, str]:
        specs = {
            f"{folder}/{name}": text
            for folder in CDI_FOLDERS
            for name, text in self.files(folder).items()
            if name.endswith((".json", ".yaml"))
        }
        for path, text in specs.items():
            self.refuse_cut(path)
            DATA_FILE.check_bytes(len(text), f"'{path}'")
        return specs

    @property
    def kernel_log(self) -> str:
        """Return the kernel's messages since the boot that are still in the kernel's buffer."""
        return self._full_answer_of("dmesg")

    @property
    def refused_gpus(self) -> list[str]:
        """Return the device ids of the GPUs that the driver has reported as not supported since the boot."""
        return node_state.parse_refused_gpus(self.kernel_log)

    @property
    def container_images(self) -> list[str]:
        return self.answer_of("container-images").split()

    @property
    def failed_units(self) -> list[str]:
        return [row[0] for row in node_state.parse_units(self.answer_of("failed-units"))]

    @property
    def failing_units(self) -> list[str]:
        """Return the units that wait for a restart, and the units whose file systemd refuses."""
        return node_state.parse_failing_units(self._full_answer_of("units"))

    @property
    def unit_states(self) -> Mapping[str, str]:
        """Return the active state of every unit that systemd has loaded.

        Names in systemd's list that belong to no existing unit are left out.
        """
        rows = node_state.parse_units(self._full_answer_of("units"))
        return {row[0]: row[2] for row in rows if row[1:3] != ["not-found", "inactive"]}

    @property
    def shown_units(self) -> Mapping[str, ShownUnit]:
        """Return the units that the commands of `unit_commands` gathered; each name of a unit is a key."""
        is_gathered = self._has_output_of(SHOWN_UNITS)
        return parse_shown_units(self.answer_of(SHOWN_UNITS)) if is_gathered else {}

    def shown_unit(self, name: str) -> ShownUnit:
        """Return a unit as `systemctl show` described it.

        Raises HarnessError if the commands of `unit_commands` did not gather the unit, and
        BadInputError if `name` lacks the unit's type, such as `.service`.
        """
        check_unit_name(name, source="shown_unit")
        units = self.shown_units
        if name not in units:
            raise HarnessError(
                f"The unit '{name}' was not gathered; gather the unit's state by "
                f"`node.evidence(commands=unit_commands({name!r}))`.",
                evidence=self.folder,
            )
        return units[name]

    @property
    def unit_jobs(self) -> Mapping[str, str]:
        """Return the kind of each job in systemd's queue, by the job's unit.

        Raises HarnessError if the commands of `unit_commands` were not gathered.
        """
        return parse_unit_jobs(self.answer_of(UNIT_JOBS))

    @property
    def paths(self) -> GatheredPaths:
        """Return every path that was requested and found.

        Raises HarnessError if no paths were gathered. Looking up a path in the result raises
        HarnessError if the path may exist but could not be seen.
        """
        if not self._has_paths:
            raise HarnessError(
                "The evidence does not say which paths exist on the node, because no paths were gathered; gather "
                "the evidence again.",
                evidence=self.folder,
            )
        text = self._text(self.folder / "stat.txt")
        return GatheredPaths(node_state.parse_stat(text), self.folder)

    @property
    def _has_paths(self) -> bool:
        return (self.folder / "stat.txt").is_file()

    def vermagic_of(self, kernel: str) -> str | None:
        """Return the vermagic of the `nvidia` module that `kernel` would load, or None if there is no module.

        Raises HarnessError if modinfo failed, or if its output lacks the field.
        """
        return self._module_field(kernel, "vermagic")

    def module_path_of(self, kernel: str) -> str | None:
        """Return the path of the `nvidia` module that `kernel` would load, or None if there is no module.

        Raises HarnessError if modinfo failed, or if its output lacks the field.
        """
        return self._module_field(kernel, "filename")

    def module_version_of(self, kernel: str) -> str | None:
        """Return the version of the `nvidia` module that `kernel` would load, or None if there is no module.

        Raises HarnessError if modinfo failed, or if its output lacks the field.
        """
        return self._module_field(kernel, "version")

    def _module_field(self, kernel: str, field: str) -> str | None:
        name = f"modinfo-{kernel}"
        if self._is_module_absent(name):
            # modinfo prints the same error for a module that the user has no permission to see.
            refuse_closed(self.folder, f"/lib/modules/{kernel}/updates/dkms/*")
            name = f"{DEBIAN_MODULE}-modinfo-{kernel}"
            # Evidence from earlier versions lacks this command.
            if not self._has_output_of(name) or self._is_module_absent(name):
                self._refuse_stale_list(kernel)
                return None
        value = node_state.parse_modinfo_field(self.answer_of(name), field)
        if value is None:
            raise HarnessError(
                f"'{name}' shows a module without the field '{field}', which each module of the driver has.",
                evidence=self.folder,
            )
        return value

    def _refuse_stale_list(self, kernel: str) -> None:
        """Raise HarnessError if modinfo did not find a module whose file exists.

        modinfo and modprobe look for modules only in the list that depmod made, not in the folders
        of modules.
        """
        folder = f"/lib/modules/{kernel}/updates/dkms"
        files = self.paths.seen(*(f"{folder}/{name}.ko*" for name in ("nvidia", DEBIAN_MODULE)))
        if files:
            raise HarnessError(
                f"'modinfo' finds no module 'nvidia' for '{kernel}', but {sorted(files)} exists, so the "
                f"kernel's list of modules ('modules.dep') is missing or outdated. Run `depmod {kernel}` on "
                "the node, and gather the evidence again.",
                evidence=self.folder,
            )

    def _is_module_absent(self, name: str) -> bool:
        is_refused = self.exit_code_of(name) == _NO_SUCH_MODULE
        return is_refused and any(words in self.output_of(name) for words in _NO_MODULE)
