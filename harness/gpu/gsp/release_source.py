"""Makes the data of a release of NVIDIA's driver from the source of its open kernel modules.

One C file that includes the release's headers is compiled with the options of the driver's
makefile. The data is read from the debug information of the compiled file, and contains only names
and numbers.
"""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.errors import BadInputError
from harness.gpu.gsp.debug_info import read_debug_info
from harness.gpu.gsp.layouts import ReleaseFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.gpu.gsp.debug_info import DebugInfo
    from harness.gpu.gsp.layouts import Field, Layouts
    from harness.provisioning.command import Runner

_DRIVER: Final = "src/nvidia"
_SDK: Final = "src/common/sdk/nvidia/inc"
_ONE_FILE: Final = "src/kernel/gpu/gsp/kernel_gsp.c"
_COMPILE_S: Final = 300.0

#: The headers to include, in the driver's order, since headers depend on each other. Headers that a
#: release lacks are left out.
_HEADERS: Final = (
    "resserv/rs_server.h",
    "gpu/gsp/kernel_gsp.h",
    "vgpu/rpc.h",
    "objrpc.h",
    "gpu/gsp/gsp_static_config.h",
    "gpu/gsp/gsp_init_args.h",
    "gsp/gsp_fw_wpr_meta.h",
    "gsp/gspifpub.h",
    "libos_init_args.h",
    "msgq/msgq_priv.h",
    "fsp/nvdm_payload_cmd_response.h",
    "kernel/gpu/fsp/kern_fsp.h",
    "kernel/gpu/intr/engine_idx.h",
    "kernel/gpu/gpu_engine_type.h",
    "vgpu/rpc_global_enums.h",
)
_SDK_FOLDERS: Final = ("ctrl", "class", "alloc")
_RPC_HEADERS: Final = """\
#define RPC_STRUCTURES
#define RPC_GENERIC_UNION
#include "g_rpc-structures.h"
#define RPC_MESSAGE_STRUCTURES
#define RPC_MESSAGE_GENERIC_UNION
#include "g_rpc-message-header.h"
#include "gpu/gsp/message_queue_priv.h"
"""

#: Structures to read in addition to the parameters of commands, if the release has them.
_STRUCTS: Final = re.compile(
    r"GspStaticConfigInfo|GspSystemInfo|GSP_ARGUMENTS_CACHED|LibosMemoryRegionInitArgument|GspFwWprMeta"
    r"|msgq[TR]xHeader|NV_CHANNEL_ALLOC_PARAMS|NV_MEMORY_DESC_PARAMS"
    r"|NVDM_PAYLOAD_(?:COMMAND_RESPONSE|COT)|GSP_FMC_BOOT_PARAMS|PACKED_REGISTRY_(?:TABLE|ENTRY)"
    r"|NV_VASPACE_ALLOCATION_PARAMETERS|NV2080_ALLOC_PARAMETERS|NV0080_ALLOC_PARAMETERS"
    r"|NVC637_ALLOCATION_PARAMETERS|NVC638_ALLOCATION_PARAMETERS"
    r"|rpc_(?:set_guest_system_info|update_bar_pde|gsp_rm_control|gsp_rm_alloc|free"
    r"|unloading_guest_driver|gsp_set_system_info|set_registry|dump_protobuf_component|os_error_log"
    r"|post_event|rc_triggered|run_cpu_sequencer|mmu_fault_queued|gpu_device_info)_v"
)
_CONSTANTS: Final = re.compile(
    r"MC_ENGINE_IDX_\w+|RM_ENGINE_TYPE_\w+|NV2080_ENGINE_TYPE_\w+|NV_VGPU_MSG_(?:FUNCTION|EVENT)_\w+"
)
_WITH_DEBUG_INFO: Final = ("-c", "-O0", "-g", "-fno-eliminate-unused-debug-types", "-w")
_MACRO: Final = re.compile(r"^#define (\w+) \S", re.MULTILINE)
#: The prefix of the enumerators that copy the values of macros into the debug information.
_COPY: Final = "harness_"

_METHOD: Final = re.compile(
    r"/\*methodId=\*/\s*(?P<number>0x[0-9a-fA-F]+)"
    r".*?/\*paramSize=\*/\s*(?:sizeof\((?:struct )?(?P<struct>\w+)\)|0)"
    r".*?/\*func=\*/\s*\"(?P<name>\w+)\"",
    re.DOTALL,
)
#: The macros of commands that only the GSP implements; the method tables lack these commands.
_COMMAND_MACRO: Final = re.compile(
    r"^#define (?P<name>NV2080_CTRL_CMD_\w+) \((?P<number>0x2080[0-9a-fA-F]{4})[uU]?\)",
    re.MULTILINE,
)
#: The classes of displays; their hundreds of commands are left out, since these GPUs have no
#: display.
_DISPLAY_CLASSES: Final = frozenset({0x0073, 0x5070, 0xC370, 0xC372})
_VERSION: Final = re.compile(r"^NVIDIA_VERSION\s*=\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class _Compiler:
    """Compiles code with the driver's own options, whose paths are relative to the driver's folder."""

    source: Path
    work: Path
    runner: Runner
    flags: tuple[str, ...]

    def compile(self, code: str, options: Iterable[str]) -> Path:
        file, made = self.work / "headers.c", self.work / "headers.out"
        file.write_text(code)
        argv = ["cc", *self.flags, *options, str(file), "-o", str(made)]
        self.runner.run(
            ["env", f"--chdir={self.source / _DRIVER}", *argv], timeout_s=_COMPILE_S
        ).check("Compiling the release's headers")
        return made


def make_release(source: Path, work: Path, runner: Runner) -> ReleaseFile:
    """Make the data of the release whose source is in the folder `source`; write only into `work`.

    Raises BadInputError if the folder is not the source of a release, and CommandError if the
    headers in the folder don't compile.
    """
    version = _VERSION.search(_text(source, "version.mk"))
    if version is None:
        raise BadInputError(
            "It has no line 'NVIDIA_VERSION = …'.", source=str(source / "version.mk")
        )
    compiler = _Compiler(
        source=source, work=work, runner=runner, flags=tuple(_compiler_flags(source, runner))
    )
    headers = _headers(source, compiler.flags)
    macros = compiler.compile(headers, ["-E", "-dM"]).read_text()
    names = sorted({name for name in _MACRO.findall(macros) if _CONSTANTS.fullmatch(name)})
    # The compiler writes the values of enumerators, but not of macros, into the debug information.
    copies = "".join(f"enum {{ {_COPY}{name} = (int)({name}) }};\n" for name in names)
    found = read_debug_info(compiler.compile(headers + copies, _WITH_DEBUG_INFO))
    commands: dict[str, tuple[str, str | None]] = {}
    for number, name, struct in (*_commands(source), *_macro_commands(macros, found)):
        commands.setdefault(f"{number:#010x}", (name, struct if struct in found.structs else None))
    wanted = [name for name in found.structs if _STRUCTS.fullmatch(name)]
    wanted += [struct for _, struct in commands.values() if struct is not None]
    structs: dict[str, tuple[int, list[tuple[str, int, int, str, int]]]] = {}
    while wanted:
        name = wanted.pop()
        if name not in structs and name in found.structs:
            structs[name] = found.structs[name]
            wanted += [kind for _, _, _, kind, _ in structs[name][1]]
    constants = {
        name.removeprefix(_COPY): value
        for name, value in found.constants.items()
        if _CONSTANTS.fullmatch(name.removeprefix(_COPY))
    }
    return ReleaseFile(
        schema=1, release=version[1], structs=structs, commands=commands, constants=constants
    )


def changes(old: Layouts, new: Layouts) -> Iterator[str]:
    """Yield one line for each structure, command and number that differs."""
    for name in sorted({*old.structs, *new.structs}):
        if name not in new.structs:
            yield f"- structure {name}"
        elif name not in old.structs:
            yield f"+ structure {name}"
        elif old.struct(name) != new.struct(name):
            yield f"~ structure {name}: {_struct_change(old, new, name)}"
    yield from _table_changes("command", _command_lines(old), _command_lines(new))
    yield from _table_changes("number", old.constants, new.constants)


def _struct_change(old: Layouts, new: Layouts, name: str) -> str:
    before, after = old.struct(name), new.struct(name)
    parts = [] if before.size == after.size else [f"size {before.size} -> {after.size}"]
    parts += [f"-{field}" for field in before.fields if field not in after.fields]
    parts += [f"+{field}" for field in after.fields if field not in before.fields]
    parts += [
        f"{field} {_place(was)} -> {_place(now)}"
        for field, was in before.fields.items()
        if (now := after.fields.get(field)) is not None and now != was
    ]
    return ", ".join(parts) or "the order of fields"


def _place(field: Field) -> str:
    return f"{field.type}[{field.count}] of {field.size} bytes at {field.offset}"


def _command_lines(layouts: Layouts) -> Mapping[str, str]:
    return {
        f"{number:#010x}": f"{command.name}({command.struct or ''})"
        for number, command in layouts.commands.items()
    }


def _table_changes(
    what: str, old: Mapping[str, object], new: Mapping[str, object]
) -> Iterator[str]:
    for name in sorted({*old, *new}):
        if name not in new:
            yield f"- {what} {name}: {old[name]}"
        elif name not in old:
            yield f"+ {what} {name}: {new[name]}"
        elif old[name] != new[name]:
            yield f"~ {what} {name}: {old[name]} -> {new[name]}"


def _text(source: Path, name: str) -> str:
    try:
        return (source / name).read_text(errors="replace")
    except OSError as error:
        raise BadInputError(
            "The source of NVIDIA's open kernel modules was expected, such as Debian's source package "
            f"'nvidia-open-gpu-kernel-modules', but '{name}' cannot be read: {error.strerror}.",
            source=str(source),
        ) from error


def _compiler_flags(source: Path, runner: Runner) -> list[str]:
    """Return the options with which the driver's makefile compiles one of its files."""
    _text(source, f"{_DRIVER}/Makefile")
    plan = runner.run(["make", "--dry-run", "-C", str(source / _DRIVER)], timeout_s=_COMPILE_S)
    for line in plan.check("Asking the driver's makefile for its options").stdout.splitlines():
        if f"-c {_ONE_FILE}" in line:
            compiler = line[: line.index(f"-c {_ONE_FILE}")].rpartition("&&")[2]
            return shlex.split(compiler)[1:]
    raise BadInputError(
        f"The makefile was expected to compile '{_ONE_FILE}', but prints no command for this file.",
        source=str(source / _DRIVER / "Makefile"),
    )


def _headers(source: Path, flags: Sequence[str]) -> str:
    driver, sdk = source / _DRIVER, source / _SDK
    folders = [driver / folder for option, folder in itertools.pairwise(flags) if option == "-I"]
    chosen = [name for name in _HEADERS if any((folder / name).is_file() for folder in folders)]
    chosen += sorted(
        str(file.relative_to(sdk)) for each in _SDK_FOLDERS for file in (sdk / each).rglob("*.h")
    )
    return "".join(f'#include "{name}"\n' for name in chosen) + _RPC_HEADERS


def _commands(source: Path) -> Iterator[tuple[int, str, str | None]]:
    for file in sorted((source / _DRIVER / "generated").glob("g_*_nvoc.c")):
        for found in _METHOD.finditer(file.read_text(errors="replace")):
            number = int(found["number"], 16)
            if number >> 16 not in _DISPLAY_CLASSES:
                yield number, found["name"], found["struct"]


def _macro_commands(macros: str, found: DebugInfo) -> Iterator[tuple[int, str, str | None]]:
    for macro in _COMMAND_MACRO.finditer(macros):
        structs = (
            f"{name}_PARAMS" for name in (macro["name"].replace("_CMD_", "_", 1), macro["name"])
        )
        struct = next((name for name in structs if name in found.structs), None)
        yield int(macro["number"], 16), macro["name"], struct
