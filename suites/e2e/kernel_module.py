"""Shell code that makes kernel modules which differ from the baked one."""

from __future__ import annotations

#: The installed module of the running kernel, in any compression.
INSTALLED = "$(ls /lib/modules/$(uname -r)/updates/dkms/nvidia.ko*)"
BAKED_VERSION = "580.126.09"
OTHER_VERSION = "580.126.19"


def with_other_field(path: str, old: str, new: str) -> str:
    """Return a script that replaces a field of `modinfo` in the module file `path`.

    `path` is shell code, `old` and `new` are `sed` patterns of the same length. A compressed file
    is replaced by one that is not; its path is in `$f` afterwards.
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


#: Loads a module of another version; the file of the baked one stays.
LOAD_OTHER_VERSION = (
    f"cp {INSTALLED} /run; "
    + of_other_version("$(ls /run/nvidia.ko*)")
    + "; rmmod nvidia_uvm nvidia 2>/dev/null || true; insmod $f; "
    + f"grep -qx {OTHER_VERSION} /sys/module/nvidia/version"
)
