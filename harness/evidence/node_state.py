"""Pure functions that parse the output of a node's tools and kernel."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.datafile import parse_yaml
from harness.errors import HarnessError
from harness.provisioning.driver_messages import parse_messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: The size limit of a collected file; only the beginning of a larger file is collected.
FILE_LIMIT_KIB = 4096
#: The format of `find -printf` for `parse_stat`; the path is last, because it may have blanks.
STAT_FORMAT = "%y %m %s %T@ %p\\n"

_DKMS = re.compile(
    r"(?P<name>[\w.+~-]+)(?:/|,\s*)(?P<version>[^,:\s]+)"
    # Some releases of DKMS print notices and errors directly after the state.
    r"(?:,\s*(?P<kernel>[^,:\s]+),\s*(?P<arch>[^,:\s]+))?:\s*"
    r"(?P<state>added|built|installed|broken)"
)
#: DKMS prints this for a module whose source is missing, and then continues its list.
_DKMS_NOTICE = re.compile(
    r"Deprecated feature: |Warning: |Error! \S+: Missing the module source directory"
)
_PCI = re.compile(
    r"(?P<slot>\S+) .*\[(?P<class_code>[0-9a-f]{4})\]: .*"
    r"\[(?P<vendor>[0-9a-f]{4}):(?P<device>[0-9a-f]{4})\]"
)
#: The first line that lspci prints about a function is shorter than this.
_LONGEST_PCI_LINE = 1024
#: Errors of lspci and its libraries. lspci prints errors before it flushes its output, so an error may be inside a line.
_PCI_ERROR = re.compile(r"(?:pcilib|lspci|libkmod): .*\n")
#: lspci's marks for a configuration space that reads all ones; lspci then prints the ids that the
#: kernel read earlier.
_ALL_ONES = re.compile(r"\(rev ff\)|!!! Unknown header type 7f")
#: A script that prints the ids in the configuration space of each PCI function. The script reads
#: nothing else in that space.
PCI_CONFIG_SCRIPT = (
    'for f in /sys/bus/pci/devices/*/config; do printf \'\\n%s\' "$f"; od -An -tx1 -N4 "$f"; done'
)
#: A script that prints a line for each file lock that a process holds: the process, the path and
#: the command, separated by tabs. /proc/locks is not used, since that file names the process that
#: first locked the file. This process may have ended and left the lock to a child.
LOCKS_SCRIPT = (
    "grep -ls '^lock:' /proc/[0-9]*/fdinfo/* | while IFS=/ read -r _ _ pid _ fd; do "
    'printf \'%s\\t%s\\t\' "$pid" "$(readlink "/proc/$pid/fd/$fd")"; '
    "cat \"/proc/$pid/cmdline\" | tr '\\000\\n' '  '; echo; done"
)
_PCI_CONFIG = re.compile(
    r"^/sys/bus/pci/devices/(?P<slot>[^/\s]+)/config (?P<ids>[0-9a-f]{2}(?: [0-9a-f]{2}){3})[ \t]*$",
    re.MULTILINE,
)
_NO_IDS = "ff ff ff ff"
_SLOT = re.compile(r"(?:[0-9a-f]{4,}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")
#: systemd's marks of the states of a unit. In a locale without UTF-8, systemd prints an asterisk
#: or an x.
_UNIT_MARKS = set(
    "*x\N{BLACK CIRCLE}\N{WHITE CIRCLE}\N{MULTIPLICATION SIGN}\N{CLOCKWISE OPEN CIRCLE ARROW}"
)
#: The name of a unit of any type; other characters are escaped in a unit's name.
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]+\.[a-z]+")
#: The columns that the harness reads: a unit's name, load state and active state.
_UNIT_COLUMNS = 3
#: The load states of a unit that can't start, because systemd refuses its file.
_REFUSED = ("bad-setting", "error")
#: The sub-state of a failed unit that systemd starts again. systemd 254 adds `auto-restart-queued`.
RESTARTING = "auto-restart"
_MODULE = re.compile(r"(\S+) \d{1,20} (\d{1,20}|-) (\S+)")
_STAT = re.compile(
    r"(?P<kind>\S) (?P<mode>[0-7]{1,8}) (?P<size>\d{1,20}) (?P<modified>-?[0-9]{1,20}(?:\.[0-9]{0,20})?) (?P<path>/.*)"
)
#: The version of the NVML library in a CDI spec, which is the version of its driver.
_CDI_NVML = re.compile(r"/libnvidia-ml\.so\.(\d{1,4}(?:\.\d{1,4}){1,2})(?![\w.])")
#: The form of a CDI spec's version, which container runtimes require.
_CDI_VERSION = re.compile(r"v?(\d{1,5})\.(\d{1,5})\.(\d{1,5})")
#: The name of a device in the specification of CDI.
_CDI_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
#: The kind of a CDI spec: the vendor and the class of its devices.
_CDI_SPEC_KIND = re.compile(r"{0}/{0}".format(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"))
_LONGEST_CDI_KIND = 255
#: A kind in a CDI spec of YAML or JSON, which may be an invalid file.
_CDI_KIND = re.compile(
    r"""(?:^|[{,])[ \t]*["']?kind["']?[ \t]*:[ \t]*["']?([\w.-]+/[\w.-]+)""", re.MULTILINE
)
#: The types of YAML's values that contain other values.
_COLLECTIONS = (list, dict, set)
_PREBAKE = re.compile(r"AKS_GPU_PREBAKE (?P<fields>.*)")


@dataclass(frozen=True, kw_only=True)
class LoadedModule:
    """A line of `/proc/modules`."""

    name: str
    references: int
    holders: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DkmsBuild:
    """A line of `dkms status`; `kernel` is None for a module that is added but not built."""

    name: str
    version: str
    kernel: str | None
    state: str


@dataclass(frozen=True, kw_only=True)
class PciFunction:
    """A function that `lspci -nnkv` shows; each id has four hexadecimal digits."""

    slot: str
    class_code: str
    vendor: str
    device: str
    driver_in_use: str | None
    is_answering: bool | None = True
    """False if the function's configuration space reads all ones, for example after the device left the bus.

    None if the configuration space was not read."""
    is_virtual: bool = False
    """True for a virtual function that the node's kernel made of a device (SR-IOV)."""

    @property
    def address(self) -> str:
        """Return the slot with its PCI segment; `lspci` omits the segment if all segments are 0."""
        return self.slot if self.slot.count(":") > 1 else f"0000:{self.slot}"


@dataclass(frozen=True, kw_only=True)
class PathStat:
    """A path that `find` printed; `kind` is the letter of `%y`, and `mode` is the number of `%m`."""

    path: str
    kind: str
    mode: int
    size: int
    modified_at_s: float

    @property
    def is_setuid(self) -> bool:
        return bool(self.mode & 0o4000)


def parse_modules(text: str) -> dict[str, LoadedModule]:
    """Parse `/proc/modules`.

    Raises HarnessError if a line has an unknown form.
    """
    modules: dict[str, LoadedModule] = {}
    for line in text.splitlines():
        found = _MODULE.match(line)
        if found is None:
            raise HarnessError(f"'/proc/modules' has a line of an unknown format: {line!r}.")
        name, references, holders = found.groups()
        modules[name] = LoadedModule(
            name=name,
            # A kernel that cannot unload modules does not count references.
            references=0 if references == "-" else int(references),
            holders=tuple(holder for holder in holders.split(",") if holder not in {"", "-"}),
        )
    return modules


def parse_dkms_status(text: str) -> list[DkmsBuild]:
    """Parse `dkms status` in both of its forms, `name/version, …` and `name, version, …`.

    Raises HarnessError if DKMS reports an error, because the output may then lack modules. Raises
    HarnessError if a line about an `nvidia` module, or every line, has an unknown form.
    """
    builds: list[DkmsBuild] = []
    others: list[str] = []
    for line in text.splitlines():
        if _DKMS_NOTICE.match(line):
            continue
        found = _DKMS.match(line.strip())
        if "Error!" in line:
            raise HarnessError(
                f"DKMS reports an error, so its list may lack modules: {text.strip()!r}."
            )
        if found is not None:
            builds.append(
                DkmsBuild(
                    name=found["name"],
                    version=found["version"],
                    kernel=found["kernel"],
                    state=found["state"],
                )
            )
        elif line.strip():
            others.append(line)
    for line in others:
        if "nvidia" in line or not builds:
            raise HarnessError(f"'dkms status' has a line of an unknown format: {line!r}.")
    return builds


def parse_units(text: str) -> list[list[str]]:
    """Return the columns of `systemctl list-units`; the first column is the unit's name.

    Some releases of systemd print a symbol before the name of a failed unit. Raises HarnessError if
    a line does not begin with a unit's name and its load and active states.
    """
    rows = unit_rows(text)
    for row in rows:
        if len(row) < _UNIT_COLUMNS or _UNIT.fullmatch(row[0]) is None:
            raise HarnessError(
                f"'systemctl list-units' has a line of an unknown format: {' '.join(row)[:500]!r}."
            )
    return rows


def parse_failing_units(text: str) -> list[str]:
    """Return the units in `systemctl list-units` that fail again and again, or that can't start.

    systemd gives the state `failed` neither to restarting units nor to units that can't start.
    Raises HarnessError in the same cases as `parse_units`.
    """
    return [
        name
        for name, load, _, *others in parse_units(text)
        if load in _REFUSED or (others and others[0].startswith(RESTARTING))
    ]


def unit_rows(text: str) -> list[list[str]]:
    """Return the words of each line of a list of units; unlike `parse_units`, do not check unit names."""
    # Split only at "\n": a description may have the other characters at which str.splitlines splits.
    rows = (line.split() for line in text.split("\n"))
    return [row[1:] if row[0] in _UNIT_MARKS and row[1:] else row for row in rows if row]


def parse_lspci(text: str) -> list[PciFunction]:
    """Parse `lspci -nnkv`.

    Raises HarnessError if a function has an unknown format, or if there is text but no function.
    """
    functions: list[PciFunction] = []
    listed = _PCI_ERROR.sub("", f"{text}\n").strip()
    for block in re.split(r"\n(?=\S)", listed):
        found = _PCI.match(block, 0, _LONGEST_PCI_LINE)
        if found is not None:
            driver = re.search(r"^[ \t]+Kernel driver in use: (\S+)", block, re.MULTILINE)
            functions.append(
                PciFunction(
                    slot=found["slot"],
                    class_code=found["class_code"],
                    vendor=found["vendor"],
                    device=found["device"],
                    driver_in_use=None if driver is None else driver[1],
                    is_answering=_ALL_ONES.search(block) is None,
                )
            )
        elif _SLOT.match(block) or "\n\t" in block:
            raise HarnessError(
                f"'lspci' shows a PCI function in an unknown format: {block[:500]!r}."
            )
    if listed and not functions:
        raise HarnessError(f"'lspci' shows no PCI function, only unknown text: {listed[:500]!r}.")
    return functions


def parse_pci_event(text: str, name: str) -> PciFunction:
    """Parse the `uevent` file of a PCI function, for a node without `lspci`.

    Raises HarnessError if the `uevent` file has an unknown form; the message names the file.
    """
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    try:
        vendor, _, device = fields["PCI_ID"].lower().partition(":")
        return PciFunction(
            slot=fields["PCI_SLOT_NAME"],
            # The last of the three bytes of a class is the programming interface.
            class_code=f"{int(fields['PCI_CLASS'], 16) >> 8:04x}",
            vendor=vendor,
            device=device,
            driver_in_use=fields.get("DRIVER"),
        )
    except (KeyError, ValueError) as error:
        raise HarnessError(
            f"The PCI function in '{name}' has an unknown format: {text!r}."
        ) from error


def parse_answering(text: str) -> dict[str, bool]:
    """Return by slot whether each PCI function answers, from the output of PCI_CONFIG_SCRIPT.

    A PCI function whose configuration space could not be read is left out. Only the configuration
    space shows whether a PCI function answers; the other files in sysfs show what the kernel read
    when it found the function.
    """
    return {found["slot"]: found["ids"] != _NO_IDS for found in _PCI_CONFIG.finditer(text)}


def parse_driver_version(text: str) -> str:
    """Parse `/proc/driver/nvidia/version`.

    Raises HarnessError if the file has no version.
    """
    found = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)(?:\s|$)", text, re.MULTILINE)
    if found is None:
        raise HarnessError(f"'/proc/driver/nvidia/version' has an unknown format: {text!r}.")
    return found[1]


def parse_cdi_devices(text: str) -> list[str] | None:
    """Return the devices of a CDI spec, such as 'nvidia.com/gpu=0', or None if the spec is invalid.

    No error is raised for an invalid file: container runtimes ignore such a file, so the file is a
    fault of the node. A well-formed spec file is nevertheless invalid if one of its devices changes
    nothing in a container (moby/moby#47633), or if the file uses a feature that is newer than the
    file's `cdiVersion`.
    """
    try:
        spec = parse_yaml(text)
        version, kind = spec["cdiVersion"], spec["kind"]
        devices = spec.get("devices") or ()
        names = [device["name"] for device in devices]
        # A short text with aliases may be a huge list, so do not render a list.
        if any(name is None or isinstance(name, _COLLECTIONS) for name in names):
            return None
        has_edits = all(any(device["containerEdits"].values()) for device in devices)
        required = _required_cdi_version(spec, devices)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    found = _CDI_VERSION.fullmatch(version) if isinstance(version, str) else None
    if not has_edits or found is None or tuple(map(int, found.groups())) < required:
        return None
    if len(kind) > _LONGEST_CDI_KIND or not _CDI_SPEC_KIND.fullmatch(kind):
        return None
    if not all(_CDI_NAME.fullmatch(str(name)) for name in names):
        return None
    return [f"{kind}={name}" for name in names]


def _required_cdi_version(spec: Any, devices: Any) -> tuple[int, int, int]:
    """Return the oldest version of CDI that has all features that a spec uses.

    Since release 0.5.4, the CDI library of container runtimes refuses a spec that uses a feature
    newer than the spec's declared version (cncf-tags/container-device-interface,
    specs-go/version.go).
    """
    edits = [spec.get("containerEdits") or {}, *(device["containerEdits"] for device in devices)]
    rdt = [edit["intelRdt"] for edit in edits if edit.get("intelRdt") is not None]
    features = {
        (0, 4, 0): [mount.get("type") for mount in _items_of(edits, "mounts")],
        (0, 5, 0): [
            *(str(device["name"])[:1].isdigit() for device in devices),
            *(node.get("hostPath") for node in _items_of(edits, "deviceNodes")),
        ],
        (0, 6, 0): [
            "." in spec["kind"].partition("/")[2],
            *(part.get("annotations") for part in (spec, *devices)),
        ],
        (0, 7, 0): [*(True for _ in rdt), *(edit.get("additionalGids") for edit in edits)],
        (1, 1, 0): [
            *(one.get("schemata") is not None or one.get("enableMonitoring") for one in rdt),
            *(edit.get("netDevices") for edit in edits),
        ],
    }
    return max((version for version, uses in features.items() if any(uses)), default=(0, 3, 0))


def _items_of(edits: Iterable[Any], key: str) -> Iterator[Any]:
    """Yield the items of the lists at `key` in `edits`, but only once for a list shared by YAML aliases."""
    lists = {id(items): items for edit in edits if (items := edit.get(key))}
    for items in lists.values():
        yield from items


def parse_cdi_kinds(text: str) -> set[str]:
    """Return the kinds of devices that a CDI spec names, even if the file is not valid."""
    return set(_CDI_KIND.findall(text))


def parse_cdi_device_nodes(text: str) -> set[str]:
    """Return the device nodes of all devices in a CDI spec, or an empty set if the text is not a spec."""
    try:
        spec = parse_yaml(text)
        edits = [
            spec.get("containerEdits"),
            *(device.get("containerEdits") for device in spec.get("devices") or ()),
        ]
        nodes = _items_of([edit for edit in edits if edit], "deviceNodes")
        return {node["path"] for node in nodes if isinstance(node["path"], str)}
    except (AttributeError, KeyError, TypeError, ValueError):
        return set()


def parse_cdi_driver_versions(text: str) -> set[str]:
    """Return the driver versions in the names of the NVML libraries that a CDI spec mounts."""
    return set(_CDI_NVML.findall(text))


def parse_gpu_name(text: str) -> str | None:
    """Parse the name of a GPU in the driver's `information` file."""
    found = re.search(r"^Model:(.*)$", text, re.MULTILINE)
    return None if found is None else found[1].strip(" \t")


def parse_refused_gpus(log: str) -> list[str]:
    """Return the device id of each GPU that the NVIDIA driver reported as not supported.

    The driver repeats its report, so each slot counts once. If the driver reports no id, the GPU's
    name or slot is returned. For a legacy GPU, the driver prints the model in one line and the slot in
    the next line.
    """
    refused: dict[str, str] = {}
    model = ""
    for refusal in parse_messages(log):
        if refusal.words is None or not refusal.words.is_refusal:
            continue
        fields = refusal.fields
        slot, device = fields.get("address"), fields.get("device", "").rpartition(":")[2]
        if slot is None:
            model = fields.get("model", "")
            refused[model or refusal.line] = model or refusal.line
        elif device:
            refused[slot] = device
        else:
            refused.setdefault(slot, model or slot)
            refused.pop(model, None)
            model = ""
    return sorted(refused.values())


def parse_stat(text: str) -> dict[str, PathStat]:
    """Parse lines that `find` printed in STAT_FORMAT.

    Raises HarnessError if a line does not have this format, for example because a path contains a
    line break.
    """
    states: dict[str, PathStat] = {}
    # Split only at "\n": a path may have the other characters at which str.splitlines splits.
    for line in filter(None, text.split("\n")):
        found = _STAT.fullmatch(line)
        if found is None:
            raise HarnessError(f"The list of paths has a line of an unknown format: {line!r}.")
        states[found["path"]] = PathStat(
            path=found["path"],
            kind=found["kind"],
            mode=int(found["mode"], 8),
            size=int(found["size"]),
            modified_at_s=float(found["modified"]),
        )
    return states


def parse_boot_time(text: str) -> float:
    """Parse the `btime` line of `/proc/stat`.

    Raises HarnessError if the text has no `btime` line.
    """
    found = re.search(r"^btime (\d{1,15})$", text, re.MULTILINE)
    if found is None:
        raise HarnessError("The evidence has no '/proc/stat' with a line 'btime'.")
    return float(found[1])


def parse_modinfo_field(text: str, field: str) -> str | None:
    """Return a field of `modinfo`'s output, or None if the output lacks the field."""
    found = re.search(rf"^{re.escape(field)}:[ \t]*(.*)$", text, re.MULTILINE)
    return None if found is None else found[1].strip()


def parse_prebake_lines(text: str) -> list[Mapping[str, str]]:
    """Parse `AKS_GPU_PREBAKE key=value …` lines; fields may be in any order."""
    lines: list[Mapping[str, str]] = []
    for line in text.splitlines():
        found = _PREBAKE.search(line)
        if found is not None:
            pairs = (part.partition("=") for part in _words(found["fields"]))
            lines.append({key: value for key, _, value in pairs})
    return lines


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        # A truncated line of a log may have an unclosed quote.
        return text.split()
