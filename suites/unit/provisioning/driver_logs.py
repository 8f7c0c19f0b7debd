"""Parts of kernel logs from public reports, and the correct conclusion from each part.

The errors are shortened errors of the reports, in the form of the driver's source or of the report.
The conclusions come from the report or from NVIDIA's documents.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

_PAD = " " * 15


class Log(enum.Enum):
    """The conclusion from a log about a GPU."""

    FAULT = "not met"
    NO_FAULT = "met"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class PublicLog:
    """A part of a kernel log from a public report; `source` has the report's project and number."""

    source: str
    text: str
    says: Log
    words: str = ""
    """A part of the verdict."""
    can_retry_help: bool = True
    can_rebuild_help: bool = True


def _log(*lines: str) -> str:
    """Return lines as `dmesg` prints them; continuation lines have no time stamp."""
    return "".join(
        f"{line if line.startswith(('[Fri', '[ ', ' ')) else f'[    9.1] {line}'}\n"
        for line in lines
    )


PUBLIC_LOGS = (
    PublicLog(
        source="NVIDIA/open-gpu-kernel-modules#789",
        text=_log(
            "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
            "NVRM: GPU 0000:98:00.0: RmInitAdapter failed! (0x62:0x65:1792)",
            "NVRM: GPU 0000:98:00.0: rm_init_adapter failed, device minor number 0",
            "NVRM: gpuWaitForGfwBootComplete_TU102: failed to wait for GFW_BOOT: (progress 0x3)",
        ),
        says=Log.FAULT,
        words="could not initialise a GPU",
    ),
    PublicLog(
        source="NVIDIA/open-gpu-kernel-modules#862",
        text=_log(
            "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
            "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)",
            "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2b85)",
            f"{_PAD}NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
        ),
        says=Log.FAULT,
        words="needs NVIDIA's open kernel modules",
        can_retry_help=False,
        can_rebuild_help=False,
    ),
    PublicLog(
        source="NVIDIA/open-gpu-kernel-modules#116",
        text=_log(
            "NVRM kgspInitRm_IMPL: missing NVDEC0 engine, cannot initialize GSP-RM",
            "NVRM RmInitAdapter: Cannot initialize GSP firmware RM",
            "[drm:nv_drm_load [nvidia_drm]] *ERROR* [nvidia-drm] [GPU ID 0x00000100] Failed to allocate NvKmsKapiDevice",
        ),
        says=Log.FAULT,
        words="could not initialise a GPU",
    ),
    PublicLog(
        source="NVIDIA/open-gpu-kernel-modules#433",
        text=_log(
            "NVRM nvAssertFailedNoLog: Assertion failed: status == NV_OK @ kernel_gsp_ga102.c:235",
            "NVRM s_executeBooterUcode_TU102: Booter failed with non-zero error code: 0xa",
        ),
        says=Log.UNKNOWN,
        words="s_executeBooterUcode_TU102",
    ),
    PublicLog(
        source="geerlingguy/raspberry-pi-pcie-devices#677",
        text=_log("NVRM: Chipset not recognized (vendor ID 0x14e4, device ID 0x2712)"),
        says=Log.NO_FAULT,
    ),
    PublicLog(
        source="zzzhouuu/truenas-nvidia-drivers#20",
        text=_log(
            "NVRM: The NVIDIA GPU 0000:03:00.0 (PCI ID: 10de:1bb3)",
            f"{_PAD}NVRM: installed in this system is not supported by open",
            f"{_PAD}NVRM: nvidia.ko because it does not include the required GPU",
            f"{_PAD}NVRM: System Processor (GSP).",
            "[  988.289884] NVRM: GPU 0000:03:00.0: RmInitAdapter failed! (0x24:0x72:1603)",
        ),
        says=Log.FAULT,
        words="has no system processor (GSP)",
        can_retry_help=False,
        can_rebuild_help=False,
    ),
    PublicLog(
        source="NixOS/nixpkgs, a configuration with a GTX 870M",
        text=_log(
            "NVRM: The NVIDIA GeForce GTX 870M GPU installed in this system is",
            f"{_PAD}NVRM:  supported through the NVIDIA 470.xx Legacy drivers. Please",
            f"{_PAD}NVRM:  visit http://www.nvidia.com/object/unix.html for more",
            f"{_PAD}NVRM:  information.  The 565.77 NVIDIA driver will ignore",
            f"{_PAD}NVRM:  this GPU.  Continuing probe...",
            "NVRM: No NVIDIA GPU found.",
        ),
        says=Log.FAULT,
        words="only the legacy branch 470.xx supports this GPU",
        can_retry_help=False,
        can_rebuild_help=False,
    ),
    PublicLog(
        source="NVIDIA/NVSentinel#155",
        text=_log(
            "NVRM: The NVIDIA GPU 0000:b3:00.0",
            f"{_PAD}NVRM: (PCI ID: 10de:26b5) installed in this system has",
            f"{_PAD}NVRM: fallen off the bus and is not responding to commands.",
            "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        ),
        says=Log.FAULT,
        words="has fallen off the bus",
        can_retry_help=False,
        can_rebuild_help=False,
    ),
    PublicLog(
        source="Bumblebee-Project/Bumblebee#917",
        text=_log(
            "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
            f"{_PAD}NVRM: BAR0 is 0M @ 0x0 (PCI:0000:02:00.0)",
        ),
        says=Log.FAULT,
        words="The memory region BAR0 of the GPU 0000:02:00.0 is invalid (0M @ 0x0)",
        can_retry_help=False,
        can_rebuild_help=False,
    ),
    PublicLog(
        source="akash-network/support#209",
        text=_log(
            "[Fri Apr  5 21:29:39 2024] NVRM: GPU at PCI:0000:a1:00: GPU-979426f2-893a-7cbb-c4cf-81472f89a462",
            "[Fri Apr  5 21:29:39 2024] NVRM: Xid (PCI:0000:a1:00): 79, pid='<unknown>', name=<unknown>, "
            "GPU has fallen off the bus.",
            "[Fri Apr  5 21:29:39 2024] NVRM: GPU 0000:a1:00.0: GPU has fallen off the bus.",
            "[Fri Apr  5 21:29:39 2024] NVRM: A GPU crash dump has been created. If possible, please run",
            f"{_PAD}NVRM: nvidia-bug-report.sh as root to collect this data before",
            f"{_PAD}NVRM: the NVIDIA kernel module is unloaded.",
        ),
        says=Log.FAULT,
        words="has fallen off the bus",
        can_retry_help=False,
        can_rebuild_help=False,
    ),
    PublicLog(
        source="mattshma/bigdata#133",
        text=_log(
            "NVRM: The NVIDIA probe routine was not called for 3 device(s).",
            "NVRM: This can occur when a driver such as: ",
            "NVRM: nouveau, rivafb, nvidiafb or rivatv ",
            "NVRM: was loaded and obtained ownership of the NVIDIA device(s).",
            "NVRM: Try unloading the conflicting kernel module (and/or",
        ),
        says=Log.FAULT,
        words="Another driver is bound to a GPU",
        can_retry_help=False,
        can_rebuild_help=False,
    ),
    PublicLog(
        source="aws/amazon-ecs-ami#256",
        text=_log(
            "NVRM: API mismatch: the client has the version 535.183.01, but",
            "NVRM: this kernel module has the version 535.161.07.  Please",
            "NVRM: make sure that this kernel module and all NVIDIA driver",
            "NVRM: components have the same version.",
        ),
        says=Log.FAULT,
        words="different versions",
        can_retry_help=False,
    ),
    PublicLog(
        source="NVIDIA/open-gpu-kernel-modules#1355",
        text=_log("NVRM: Xid (PCI:0000:66:00): 145, RLW_CTRL Fatal XC0 i0 Link 00 (0x00000001)"),
        says=Log.FAULT,
        words="An NVLink of a GPU has an error",
    ),
    PublicLog(
        source="NVIDIA/open-gpu-kernel-modules#1150",
        text=_log(
            "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149"
        ),
        says=Log.FAULT,
        words="because of an error of the GPU (Xid 149)",
    ),
    PublicLog(
        source="NVIDIA/k8s-device-plugin#189",
        text=_log(
            "NVRM: Xid (PCI:0000:01:00): 69, pid=77, Class Error: ChId 0005, Class 0000a097"
        ),
        says=Log.NO_FAULT,
        words="1 that applications caused",
    ),
    PublicLog(
        source="NVIDIA/k8s-device-plugin#1974",
        text=_log(
            "NVRM: Xid (PCI:0000:01:00): 109, pid=77, name=python3, Ch 00000008, errorString CTX SWITCH TIMEOUT"
        ),
        says=Log.NO_FAULT,
        words="1 that applications caused",
    ),
    PublicLog(
        source="reports of servers for language models, whose GPUs go on working",
        text=_log(
            *(
                f"NVRM: {gpu}nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) "
                "returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
                for gpu in ("", "GPU0 ")
            )
        ),
        says=Log.NO_FAULT,
        words="2 that applications caused",
    ),
    PublicLog(
        source="NVIDIA/gpu-operator#1065",
        text=_log(
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No"
        ),
        says=Log.FAULT,
        words="memory were not corrected",
    ),
    PublicLog(
        source="kubernetes-sigs/dra-driver-nvidia-gpu#904",
        text=_log(
            "NVRM: Xid (PCI:0009:01:00): 43, pid=3188489, name=trigger_xid, channel 0x0b00000a"
        ),
        says=Log.NO_FAULT,
        words="1 that applications caused",
    ),
    PublicLog(
        source="NVIDIA/k8s-device-plugin#945",
        text=_log("NVRM: Xid (PCI:0000:00:06): 68, pid=1, name=ffmpeg, Ch 00000002"),
        says=Log.NO_FAULT,
        words="1 that applications caused",
    ),
    PublicLog(
        source="Start9Labs/start-technologies#3693",
        text=_log(
            "NVRM: GPU at PCI:000f:01:00: GPU-0f059bf0-a212-94c1-44a7-1068a6c6be66",
            "NVRM: Xid (PCI:000f:01:00): 169, fd8cd000 94000000",
        ),
        says=Log.FAULT,
        words="does not work until it is reset",
    ),
    PublicLog(
        source="awslabs/awsome-distributed-ai#1190",
        text=_log(
            "NVRM: Xid (PCI:0000:10:1c): 64, pid=1896, Row Remapper: Error, unable to remap row"
        ),
        says=Log.FAULT,
        words="could not be retired",
    ),
    PublicLog(
        source="cihlab/fics-cluster-guide#53",
        text=_log(
            "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
            "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Severity 1 Engine instance 48 Sub-engine instance 00",
            "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 19084, Non-fatal, Link 48 AN1 Heartbeat Timeout Error (First)",
        ),
        says=Log.FAULT,
        words="SXid 20034: An NVSwitch has a fatal error",
    ),
    PublicLog(
        source="leptonai/gpud#145",
        text=_log(
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 32 Sub-engine instance 00",
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Data {0x00140004, 0x00100000, 0x00140004}",
        ),
        says=Log.NO_FAULT,
    ),
    PublicLog(
        source="NVIDIA/NVSentinel#768",
        text=_log(
            "NVRM: Xid (PCI:0000:0d:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
        ),
        says=Log.FAULT,
        words="has to be recovered (GPU Reset Required)",
    ),
    PublicLog(
        source="NVIDIA/NVSentinel#1240",
        text=_log(
            "NVRM: Xid (PCI:0000:0d:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
        ),
        says=Log.NO_FAULT,
    ),
    PublicLog(
        source="NVIDIA/open-gpu-kernel-modules#848",
        text=_log(
            "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) "
            "returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1353",
            "NVRM: sysmemConstruct_IMPL: *** Cannot allocate sysmem through fb heap",
            "NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) "
            "returned from pRmApi->Alloc(pRmApi, device->session->handle, isSystemMemory ? device->handle "
            ": device->subhandle, &physHandle, sizeof(memAllocParams)) @ nv_gpu_ops.c:4647",
        ),
        says=Log.NO_FAULT,
        words="that applications caused",
    ),
    PublicLog(
        source="NVIDIA/open-gpu-kernel-modules#848, at the start of the driver",
        text=_log(
            "NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) "
            "returned from status @ kernel_gsp.c:4615",
            "NVRM: kgspInitRm_IMPL: Error preparing GSP-RM image",
            "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x51:1941)",
        ),
        says=Log.FAULT,
        words="could not initialise a GPU",
    ),
    PublicLog(
        source="NVIDIA/cuda-samples#104",
        text=_log("NVRM: GPU 0000:13:00.0: RmInitAdapter failed! (0x26:0x56:1463)"),
        says=Log.FAULT,
        words="could not initialise a GPU",
    ),
    PublicLog(
        source="NVIDIA/nvidia-docker#1218",
        text=_log(
            "nvidia: loading out-of-tree module taints kernel.",
            "nvidia: module license 'NVIDIA' taints kernel.",
            "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
            "nvidia-nvlink: Nvlink Core is being initialized, major device number 240",
            "nvidia 0000:03:00.0: vgaarb: changed VGA decodes: olddecodes=io+mem,decodes=none:owns=none",
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  430.50  Thu Sep  5 22:36:31 CDT 2019",
            "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  430.50",
            "[drm] [nvidia-drm] [GPU ID 0x00000300] Loading driver",
        ),
        says=Log.NO_FAULT,
    ),
)
