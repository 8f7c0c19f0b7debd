"""The unit that writes the CDI spec, as in NVIDIA's package nvidia-container-toolkit-base.

The unit's generator is a script with the command line of `nvidia-ctk`. The script looks for the
node's devices as the real `nvidia-ctk` does, and fails without a driver.
"""

from __future__ import annotations

from harness.api import GuestFile

SERVICE = "nvidia-cdi-refresh.service"
PATH_UNIT = "nvidia-cdi-refresh.path"
SPEC = "/var/run/cdi/nvidia.yaml"
GENERATOR = "/usr/bin/nvidia-ctk"
#: The generator sources this file first, so the file can make the generator fail or write a spec.
FAULT = "/run/nvidia-ctk-fault"

_SERVICE = """\
[Unit]
Description=Refresh NVIDIA CDI specification file
ConditionPathExists=|/usr/bin/nvidia-smi
ConditionPathExists=|/usr/sbin/nvidia-smi

[Service]
Type=oneshot
EnvironmentFile=-/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env
Environment=NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/var/run/cdi/nvidia.yaml
ExecCondition=/usr/bin/grep -qE '/nvidia.ko' /lib/modules/%v/modules.dep
ExecStart=/usr/bin/nvidia-ctk cdi generate
CapabilityBoundingSet=CAP_SYS_MODULE CAP_SYS_ADMIN CAP_MKNOD

[Install]
WantedBy=multi-user.target
"""
_PATH_UNIT = """\
[Unit]
Description=Trigger CDI refresh on NVIDIA driver install / uninstall events

[Path]
PathChanged=/lib/modules/%v/modules.dep
PathChanged=/lib/modules/%v/modules.dep.bin

[Install]
WantedBy=multi-user.target
"""
_GENERATOR = f"""\
#!/bin/sh
# nvidia-ctk cdi generate: the devices of this node, as a CDI spec.
set -eu
[ "$*" = "cdi generate" ] || exit 2
if [ -e {FAULT} ]; then . {FAULT}; fi
# NVML has the device nodes made of the GPUs that it finds.
[ -r /proc/driver/nvidia/version ] || {{ echo "failed to initialize NVML" >&2; exit 1; }}
nvidia-smi >/dev/null || true
out=$NVIDIA_CTK_CDI_OUTPUT_FILE_PATH
mkdir -p "${{out%/*}}"
found=no
{{
    echo 'cdiVersion: "0.5.0"'
    echo 'kind: nvidia.com/gpu'
    echo 'devices:'
    for node in /dev/nvidia[0-9]*; do
        [ -c "$node" ] || continue
        found=yes
        echo "- name: \\"${{node#/dev/nvidia}}\\""
        echo '  containerEdits:'
        echo '    deviceNodes:'
        echo "    - path: $node"
    done
    echo 'containerEdits:'
    echo '  deviceNodes:'
    echo '  - path: /dev/nvidiactl'
    echo '  mounts:'
    echo '  - hostPath: /usr/bin/nvidia-smi'
    echo '    containerPath: /usr/bin/nvidia-smi'
    echo '    options: [ro, nosuid, nodev, bind]'
}} >"$out.new"
[ "$found" = yes ] || {{ rm "$out.new"; echo "no devices" >&2; exit 1; }}
mv "$out.new" "$out"
"""

FILES = (
    GuestFile(path=f"/usr/lib/systemd/system/{SERVICE}", content=_SERVICE.encode()),
    GuestFile(path=f"/usr/lib/systemd/system/{PATH_UNIT}", content=_PATH_UNIT.encode()),
    GuestFile(path=GENERATOR, content=_GENERATOR.encode(), mode=0o755),
)
#: The commands that the package's maintainer scripts run after the files are installed.
INSTALL = ["sh", "-euc", f"systemctl daemon-reload; systemctl enable --quiet --now {PATH_UNIT}"]


def fault(script: str) -> GuestFile:
    """Return the file that makes the generator first run `script` in the generator's own shell."""
    return GuestFile(path=FAULT, content=f"{script}\n".encode())
