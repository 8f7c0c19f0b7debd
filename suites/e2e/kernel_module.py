"""Shell code that makes kernel modules unlike the baked module, and writes the driver's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suites.e2e.guest_script import shell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.api import Argv

#: The installed module of the running kernel, compressed or not.
INSTALLED = "$(ls /lib/modules/$(uname -r)/updates/dkms/nvidia.ko*)"
BAKED_VERSION = "580.126.09"
OTHER_VERSION = "580.126.19"


def with_other_field(path: str, old: str, new: str) -> str:
    """Return a script that replaces a `modinfo` field in the module file `path`.

    `path` is shell code; `old` and `new` are `sed` patterns of the same length. A compressed file
    is replaced by an uncompressed file, whose path is in `$f` afterwards.
    """
    return (
        f"f={path}; "
        "case $f in *.xz) xz -d $f; f=${f%.xz};; *.zst) zstd -q --rm -d $f; f=${f%.zst};; esac; "
        "objcopy --dump-section .modinfo=/run/info $f; "
        f"LC_ALL=C sed -i 's/{old}/{new}/' /run/info; "
        "objcopy --update-section .modinfo=/run/info $f"
    )


def of_other_version(path: str) -> str:
    """Return a script that gives the module file `path` the version `OTHER_VERSION`."""
    old = BAKED_VERSION.replace(".", "\\.")
    return with_other_field(path, f"version={old}", f"version={OTHER_VERSION}")


#: Loads a module of another version; the file of the baked module stays.
LOAD_OTHER_VERSION = (
    f"cp {INSTALLED} /run; "
    + of_other_version("$(ls /run/nvidia.ko*)")
    + "; rmmod nvidia_uvm nvidia 2>/dev/null || true; insmod $f; "
    + f"grep -qx {OTHER_VERSION} /sys/module/nvidia/version"
)

#: A module that keeps another module in use by calling its function.
_DEPENDENT = """\
#include <linux/module.h>
int {held}(void);
int {name}_is_loaded(void);
int {name}_is_loaded(void) {{ return 1; }}
EXPORT_SYMBOL_GPL({name}_is_loaded);
static int __init start(void) {{ return {held}() < 0; }}
static void __exit end(void) {{}}
module_init(start);
module_exit(end);
MODULE_LICENSE("GPL");
"""


def load_dependents(holds: Mapping[str, str]) -> Argv:
    """Return the command that compiles modules and loads them in this order.

    `holds` maps each new module to the module that the new module keeps in use: `nvidia` or an
    earlier new module. The symbol version of the function in `nvidia` is read from `nvidia-uvm`,
    which calls the function too.
    """
    functions = {"nvidia": "nvidia_stand_in_gpus", **{name: f"{name}_is_loaded" for name in holds}}
    sources = "".join(
        f"cat >{name}.c <<'EOF'\n{_DEPENDENT.format(name=name, held=functions[held])}EOF\n"
        for name, held in holds.items()
    )
    objects = " ".join(f"{name}.o" for name in holds)
    return shell(
        f"mkdir /run/dependents; cd /run/dependents; echo 'obj-m := {objects}' >Makefile\n{sources}"
        "modprobe --dump-modversions $(modinfo -n nvidia-uvm) | "
        'awk \'$2 == "nvidia_stand_in_gpus" { print $1 "\\t" $2 "\\tnvidia\\tEXPORT_SYMBOL_GPL\\t" }\' '
        ">nvidia.symvers\n"
        'make -s -C "/lib/modules/$(uname -r)/build" M=/run/dependents '
        "KBUILD_EXTRA_SYMBOLS=/run/dependents/nvidia.symvers modules\n"
        f"for name in {' '.join(holds)}; do insmod $name.ko; done"
    )


def refused_by(version: str) -> Argv:
    """Return the command that writes a refusal by a release of the driver to the kernel log."""
    text = (
        "NVRM: The NVIDIA GPU 0000:00:05.0 (PCI ID: 10de:2330)\\n"
        "NVRM: installed in this system is not supported by the\\n"
        f"NVRM: NVIDIA {version} driver release.\\n"
    )
    return shell(f"printf '{text}' >/dev/kmsg")
