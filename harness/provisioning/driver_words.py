"""The one table of the messages of NVIDIA's driver and its programs, with their meanings.

Provisioning decides by this table; the harness uses the table for expectations and to name causes
of failures in reports. The texts are of driver branches 470 to 595. The texts come from the source
of the open modules, from NVIDIA's catalogues of errors, and, for the closed modules, from public
reports. The table makes the module long.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass

_OPEN = "NVIDIA/open-gpu-kernel-modules"
OSAPI = f"{_OPEN}, src/nvidia/arch/nvalloc/unix/src/osapi.c"
OSINIT = f"{_OPEN}, src/nvidia/arch/nvalloc/unix/src/osinit.c"
NV = f"{_OPEN}, kernel-open/nvidia/nv.c"
NV_PCI = f"{_OPEN}, kernel-open/nvidia/nv-pci.c"
KERNEL_RC = f"{_OPEN}, src/nvidia/src/kernel/gpu/rc/kernel_rc.c"
KERNEL_GSP = f"{_OPEN}, src/nvidia/src/kernel/gpu/gsp/kernel_gsp.c"
NVSWITCH = f"{_OPEN}, src/common/nvswitch/kernel/inc/intr_nvswitch.h"
SXID_NUMBERS = f"{_OPEN}, src/common/nvswitch/interface/ctrl_dev_nvswitch.h"
XID_NUMBERS = f"{_OPEN}, src/common/sdk/nvidia/inc/nverror.h"
XID_CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
DEVICE_PLUGIN = "NVIDIA/k8s-device-plugin, internal/rm/health.go"
FABRIC_GUIDE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide"
SMI = "https://docs.nvidia.com/deploy/nvidia-smi"
LINUX_MODULES = "Linux, kernel/module"
LINUX_PCI = "Linux, drivers/pci"
KMOD = "kmod, modprobe"
RECORDED = "recorded with the driver 580.159.04 on an H100 and an H200"


class Severity(enum.Enum):
    """What a message says about the GPU."""

    NOTICE = "the driver of a sound GPU logs it too"
    APPLICATION = "an application caused the message, and the GPU still works"
    FAULT = "a GPU cannot be used, or does not work as it should"


@dataclass(frozen=True, kw_only=True)
class DriverWords:
    """A text that the driver or its programs print, and the meaning of this text.

    `text` is a regular expression in which a space matches any blanks and line breaks. `meaning`
    may contain placeholders, which are names of groups in `text`. `remedy` says how to repair a
    fault. `can_retry_help` says whether the same command may succeed when it is run again;
    `can_rebuild_help` says whether a new install of the same driver may succeed.
    """

    text: str
    meaning: str
    severity: Severity
    source: str
    remedy: str = ""
    name: str = ""
    """The name of the common cause; empty if another message names the cause."""
    can_retry_help: bool = True
    can_rebuild_help: bool = True
    is_refusal: bool = False
    """The driver, or this kind of driver, does not support the GPU."""

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """Return the compiled `text`, which is compiled at the first use only."""
        return re.compile(self.text.replace(" ", r"\s+"), re.IGNORECASE)

    @property
    def condemns_node(self) -> bool:
        return self.severity is Severity.FAULT


def _notice(text: str, meaning: str, source: str) -> DriverWords:
    return DriverWords(text=text, meaning=meaning, severity=Severity.NOTICE, source=source)


def _fault(
    text: str,
    meaning: str,
    source: str,
    remedy: str,
    *,
    name: str = "",
    helps: str = "retry build",
) -> DriverWords:
    """Return a fault; `helps` lists what may help, 'retry' for a retry and 'build' for a new build."""
    return DriverWords(
        text=text,
        meaning=meaning,
        severity=Severity.FAULT,
        source=source,
        remedy=remedy,
        name=name,
        can_retry_help="retry" in helps,
        can_rebuild_help="build" in helps,
    )


def _refusal(text: str, meaning: str, source: str, remedy: str) -> DriverWords:
    return DriverWords(
        text=text,
        meaning=meaning,
        severity=Severity.FAULT,
        source=source,
        remedy=remedy,
        name="the driver does not support the GPU",
        can_retry_help=False,
        can_rebuild_help=False,
        is_refusal=True,
    )


_ADDRESS = r"(?P<address>[0-9a-f]+:[0-9a-f]+:[0-9a-f]+(?:\.[0-9a-f]+)?)"
_AT = r"(?:GPU [0-9a-f:.]+: |GPU\d+ )?"
#: The function that logs a message; from branch 580 on, the number of the GPU precedes it.
_FUNCTION = r"(?:GPU\d+ )?\w+: "
_GPU = rf"The NVIDIA v?GPU {_ADDRESS} \(PCI ID: (?P<device>[0-9a-f]{{4}}:[0-9a-f]{{4}})\)"
_ANOTHER_GPU = "Choose a release of the driver that supports the GPU, or a node with another GPU."
_LOST_NAME = "the GPU is lost"
_REBOOT = "Reboot the node; if it happens again, have the machine repaired."
_RESET = "Reset the GPU or reboot the node; if it happens again, have the machine repaired."
_FIRMWARE = (
    "Give the GPU a larger window for its memory: enable 'Above 4G Decoding' in the firmware."
)
_MATCHING = "Install the driver's module and programs in one version, and reload the module."
_OTHER_DRIVER = "Unload the other driver, and keep it from being loaded (`modprobe.d`)."
_SEE_ABOVE = "The messages above this message say why."

UNSUPPORTED = _refusal(
    rf"{_GPU} installed in this system is not supported by the\b"
    r"(?: NVIDIA (?P<version>\d+(?:\.\d+)+) driver release\.)?",
    "The NVIDIA driver {version} does not support the GPU {address} ({device}): the GPU is too new "
    "or too old for this driver.",
    OSAPI,
    _ANOTHER_GPU,
)
_REFUSALS = (
    UNSUPPORTED,
    _refusal(
        rf"{_GPU} installed in this system requires use of the NVIDIA open kernel modules\.",
        "The GPU {address} ({device}) needs NVIDIA's open kernel modules, and the closed ones are "
        "installed.",
        "NVIDIA/open-gpu-kernel-modules#777, branch 560 and later",
        "Install the driver with its open kernel modules.",
    ),
    _refusal(
        rf"{_GPU} installed in this system is not supported by open nvidia\.ko because it does not "
        r"include the required GPU System Processor \(GSP\)\.",
        "The GPU {address} ({device}) has no system processor (GSP), which NVIDIA's open kernel "
        "modules need.",
        OSAPI,
        "Install the driver with its closed kernel modules.",
    ),
    _refusal(
        rf"{_GPU} installed in this (?:vGPU host )?system is not supported by open nvidia\.ko\.",
        "NVIDIA's open kernel modules do not support the GPU {address} ({device}).",
        OSAPI,
        "Install the driver with its closed kernel modules.",
    ),
    _refusal(
        r"Open nvidia\.ko is only ready for use on Data Center GPUs\.",
        "This release of NVIDIA's open kernel modules supports data center GPUs only.",
        f"{OSAPI}, branch 515",
        "Install the driver with its closed kernel modules, or a later release.",
    ),
    _refusal(
        r"The (?:NVIDIA )?(?P<model>[^\n]+?) GPU installed in this system is supported through the "
        r"NVIDIA (?P<branch>\S+) Legacy drivers?\.(?:[^\0]{0,200}? The (?P<version>\d+(?:\.\d+)+) "
        r"NVIDIA driver will ignore this GPU\.(?: Continuing probe\.*)?)?",
        "The installed driver does not support the {model}; only the legacy branch {branch} "
        "supports this GPU.",
        "NixOS/nixpkgs and other public reports, branches 390 to 580",
        "Install the driver of that branch, or use a node with another GPU.",
    ),
    _refusal(
        rf"ignoring the legacy GPU {_ADDRESS}",
        "The installed driver does not support the GPU {address}; only a legacy branch supports it.",
        NV_PCI,
        _ANOTHER_GPU,
    ),
)

LOST = "A GPU has fallen off the bus; the machine needs a reboot or repair."
_LOSSES = (
    _fault(
        rf"The NVIDIA GPU {_ADDRESS} \(PCI ID: (?P<device>[0-9a-f:]+)\) installed in this system has "
        r"fallen off the bus and is not responding to commands\.",
        LOST,
        OSAPI,
        _REBOOT,
        name=_LOST_NAME,
        helps="",
    ),
    _fault(
        r"(?:GPU(?: at)? (?:PCI:)?[0-9a-f]+:[0-9a-f:.]+ )?(?:GPU )?has fallen off the bus\.",
        LOST,
        OSINIT,
        _REBOOT,
        name=_LOST_NAME,
        helps="",
    ),
    _fault(
        rf"(?:GPU is lost, skipping |{_FUNCTION}Failed GPU reg read : 0xffffffff\. Check whether GPU is present)",
        LOST,
        f"{NV}; {_OPEN}, src/nvidia/src/kernel/gpu/intr/intr.c",
        _REBOOT,
        name=_LOST_NAME,
        helps="",
    ),
    _fault(
        r"[^\n]*\[NV_ERR_GPU_IS_LOST\]",
        LOST,
        f"{_OPEN}, src/common/sdk/nvidia/inc/nvstatuscodes.h",
        _REBOOT,
        name=_LOST_NAME,
        helps="",
    ),
    _fault(
        rf"nvidia {_ADDRESS}: (?:can't|Unable to) change power state from (?:D3cold to D0|"
        r"\S+ to D0,? \(?(?:device|config space) inaccessible)",
        LOST,
        f"{LINUX_PCI}/pci.c",
        _REBOOT,
        name=_LOST_NAME,
        helps="",
    ),
    _fault(
        r"[^\n]*\[NV_ERR_RESET_REQUIRED\]",
        "A GPU does not work until it is reset.",
        f"{_OPEN}, src/common/sdk/nvidia/inc/nvstatuscodes.h",
        _RESET,
        name="the GPU has to be reset",
        helps="",
    ),
    _fault(
        r"A GPU crash dump has been created\.",
        "The driver wrote a dump of a GPU that crashed.",
        OSINIT,
        _RESET,
    ),
)

_NO_REGION = "The memory region BAR{bar} of the GPU {address} is invalid ({size})."
_NO_REGION_NAME = "the firmware gave the GPU no memory region"
_INVALID_BAR = r"This PCI I/O region assigned to your NVIDIA device is invalid: BAR"
_BAR = rf"is (?P<size>\S+ @ \S+) \(PCI:{_ADDRESS}\)"
_MISCONFIGURED = r"The system BIOS may have misconfigured your GPU\."
_NOT_INITIALIZED = r"None of the NVIDIA (?:devices|graphics adapters) were initialized"
_PROBE_FAILED = (
    rf" (?:{_MISCONFIGURED}|nvidia[^\n]* failed with error -\d+|"
    rf"The NVIDIA probe routine failed for |{_NOT_INITIALIZED})"
)
_MEMORY_WINDOWS = (
    _fault(
        rf"{_INVALID_BAR}(?P<bar>0) {_BAR}(?: {_MISCONFIGURED})?",
        _NO_REGION,
        NV_PCI,
        _FIRMWARE,
        name=_NO_REGION_NAME,
        helps="",
    ),
    # From branch 525 on, the driver works without the other BARs, which some virtual functions
    # lack.
    _fault(
        rf"{_INVALID_BAR}(?P<bar>\d+) {_BAR}{_PROBE_FAILED}",
        _NO_REGION,
        NV_PCI,
        _FIRMWARE,
        name=_NO_REGION_NAME,
        helps="",
    ),
    _notice(
        rf"{_INVALID_BAR}\d+ {_BAR}",
        "The driver works without a memory region of the GPU.",
        NV_PCI,
    ),
    _fault(
        r"This is a 64-bit BAR mapped above \d+GB by the system",
        "A memory region (BAR) of a GPU is at an address that the kernel cannot use.",
        NV_PCI,
        "Update the kernel, or change 'Above 4G Decoding' in the firmware.",
        helps="",
    ),
    _fault(
        r"(?:No address space to allocate resized BAR1\.|FATAL: Failed to re-allocate BAR1\.|"
        r"Fatal Error while attempting to resize PCIe BARs\.)",
        "The memory region BAR1 of a GPU could not be resized.",
        NV_PCI,
        _FIRMWARE,
        helps="",
    ),
    _notice(
        r"ignore invalid BAR failure for BAR\d+", "The GPU works without that region.", NV_PCI
    ),
    _fault(
        r"request_mem_region failed for ",
        "Another driver has claimed the memory regions of a GPU.",
        NV_PCI,
        _OTHER_DRIVER,
        helps="",
    ),
    _fault(
        rf"(?:pci_enable_device failed, aborting|failed to map registers!|{_AT}Failed to map regs registers!|"
        rf"failed to wait for bar firewall to lower|Device start failed for |{_AT}request_irq\(\) failed |"
        rf"{_AT}rm_init_private_state\(\) failed!|{_AT}PCI channel for the device is offline|{_AT}A fatal error "
        rf"was detected\.|{_AT}The kernel has enabled MMIO for the device, but it still appears unreachable\."
        r"(?: The device will not function properly until it is reset\.)?)",
        "A GPU could not be enabled.",
        f"{NV_PCI}; {NV}; {OSINIT}",
        _RESET,
    ),
    _fault(
        rf"(?:Can't find an IRQ for your NVIDIA card!|{_AT}No interrupts of any type are available\.|"
        rf"{_AT}Tried to get IRQ \d+, but another driver(?: has it and is not sharing it\.)?"
        r"(?: You may want to verify that no audio driver is using the IRQ\.)?)",
        "A GPU has no interrupt.",
        f"{NV_PCI}; {NV}",
        "Check the firmware's settings of interrupts.",
        helps="",
    ),
)

_STARTS = (
    _fault(
        rf"{_AT}RmInitAdapter failed! \([^)\n]*\)",
        "The driver could not initialise a GPU.",
        OSINIT,
        _RESET,
        name="the driver could not initialise the GPU",
    ),
    _fault(
        r"(?:rm_init_rm\(\) failed!|failed to initialize module\.)",
        "The driver's module could not start.",
        NV,
        _SEE_ABOVE,
    ),
    _fault(
        r"(?:The NVIDIA probe routine failed for \d+ device\(s\)\.|"
        rf"{_NOT_INITIALIZED}[.!]|No NVIDIA devices probed\.)",
        "The driver could not be bound to a GPU that is on the bus.",
        NV,
        _SEE_ABOVE,
    ),
    _fault(
        r"The NVIDIA probe routine was not called for \d+ device\(s\)\.",
        "Another driver is bound to a GPU.",
        NV,
        _OTHER_DRIVER,
        name="another driver is bound to the GPU",
        helps="",
    ),
    _fault(
        rf"GPU {_ADDRESS} is already bound to ",
        "Another driver is bound to the GPU {address}.",
        NV_PCI,
        _OTHER_DRIVER,
        name="another driver is bound to the GPU",
        helps="",
    ),
    _fault(
        rf"{_AT}GPU does not have the necessary power cables connected\.",
        "A GPU's power cables are not connected.",
        OSINIT,
        "Connect the power cables.",
        name="the GPU has no power",
        helps="",
    ),
    _fault(
        r"API mismatch: the client ",
        "The driver's programs and its loaded module have different versions.",
        NV,
        _MATCHING,
        name="the driver's programs and module differ",
        helps="build",
    ),
    _fault(
        rf"(?:{_AT}RmFetchGspRmImages: No firmware image found|nvidia [0-9a-f:.]+: Direct firmware load for )",
        "The firmware of the GPU's system processor (GSP) is not installed.",
        OSINIT,
        "Install the driver's firmware files in the version of its module.",
        name="the GPU's firmware is missing",
        helps="build",
    ),
    _fault(
        rf"{_FUNCTION}GSP firmware image version (?:mismatch: got version \S+, |unknown or malformed, )"
        r"expected version (?P<version>\d+(?:\.\d+)+)",
        "The firmware of the GPU's system processor (GSP) is not of the version {version} of the module.",
        KERNEL_GSP,
        _MATCHING,
        name="the driver's programs and module differ",
        helps="build",
    ),
    _fault(
        rf"{_FUNCTION}(?:unexpected WPR2 already up, cannot proceed with booting GSP|"
        r"\(the GPU is likely in a bad state and may need to be reset\))",
        "A GPU cannot be started until it is reset.",
        KERNEL_GSP,
        _RESET,
        name="the GPU has to be reset",
        helps="",
    ),
    _fault(
        r"(?:Rate limiting GSP RPC error prints for GPU at |"
        rf"{_FUNCTION}(?:Timeout after [^\n]* of waiting for RPC response from GPU\d+ GSP!|"
        r"GPU\d+ sanity check failed [^\n]* waiting for RPC response from GSP\.|"
        r"\*+ GSP Timeout \*|=+ GSP(?:-RM| core) unresponsive =|rpcRecvPoll timedout for |"
        r"(?:GSP RM |LibOS )?Heartbeat timed out|Assertion failed: Back to back GSP RPC timeout detected!))",
        "The system processor (GSP) of a GPU does not answer.",
        KERNEL_GSP,
        _RESET,
        name="the GPU has to be reset",
    ),
    _fault(
        rf"{_FUNCTION}uvm encountered global fatal error 0x[0-9a-f]+, requiring os reboot to recover",
        "The driver's memory manager (UVM) has failed for good.",
        f"{_OPEN}, src/nvidia/src/kernel/rmapi/nv_gpu_ops.c",
        _REBOOT,
        name="the GPU has to be reset",
        helps="",
    ),
    _fault(
        rf"{_FUNCTION}RC watchdog: GPU is probably locked!",
        "A GPU does not answer.",
        KERNEL_RC,
        _RESET,
        name="the GPU has to be reset",
    ),
    _fault(
        rf"{_FUNCTION}(?:Failed to update Rx Detect Link mask!|Getting peer\d*'s postRxDetLinkMask failed!)",
        "An NVLink of a GPU does not answer.",
        f"{_OPEN}, src/nvidia/src/kernel/gpu/nvlink/arch/hopper/kernel_nvlink_gh100.c",
        _RESET,
    ),
    _fault(
        rf"Attempting to remove device {_ADDRESS} with non-zero usage count!",
        "The GPU {address} was removed while it was in use.",
        NV_PCI,
        _REBOOT,
    ),
    _fault(
        rf"{_AT}(?:rm_init_adapter(?:\(\d+\))? failed|RmInitNvDevice failed, bailing out of RmInitAdapter|"
        r"RmInitAdapter: |osInitNvMapping: |nvidia_frontend_open: minor \d+, module->open\(\) failed|"
        r"(?:kgspInitRm|kgspBootstrap|_kgspBootGspRm|kgspWaitForGfwBootOk|kgspHealthCheck|"
        r"kgspExecuteFwsec|gpuWaitForGfwBootComplete|"
        r"kfspPollForQueueEmpty|kfspWaitForSecureBoot|kfspSendBootCommands|kfspDumpDebugState)\w*: )",
        "The driver could not initialise a GPU.",
        f"{OSINIT}; {KERNEL_GSP}",
        _RESET,
    ),
)

LOADED = _notice(
    r"loading NVIDIA UNIX [^\n]*? (?P<version>\d+(?:\.\d+)+)(?!\S)", "The module is loaded.", NV
)
_NOTICES = (
    LOADED,
    _notice(
        r"No NVIDIA (?:GPU|PCI devices|graphics adapter) (?:found[.!]|probed!)",
        "There was no GPU for the driver when it was loaded.",
        NV,
    ),
    _notice(
        rf"GPU at (?:PCI:)?{_ADDRESS}: GPU-[0-9a-f-]+",
        "The message names the GPU of the next messages.",
        KERNEL_RC,
    ),
    _notice(
        r"GPU Board Serial Number: ", "The message names the GPU of the next messages.", KERNEL_RC
    ),
    _notice(
        rf"{_AT}GPU serial number is ", "The message names the GPU of the last messages.", OSINIT
    ),
    _notice(
        r"Persistence mode is deprecated and will be removed",
        "Persistence mode is deprecated.",
        NV,
    ),
    _notice(
        r"(?:GPU\d+ )?gpuClearFbhubPoisonIntrForBug2924523_\w+: FBHUB Interrupt detected\. Clearing it\.",
        "The driver cleared an interrupt while a Hopper GPU started.",
        RECORDED,
    ),
    _notice(
        rf"{_FUNCTION}(?:Unable to read NV_PF0_INITIAL_AND_TOTAL_VFS|LTR is disabled in the hierarchy|"
        r"Error setting links to sleep on linkmask 0x0(?!\S))",
        "The message says which features of the bus and of NVLink a Blackwell GPU does not use.",
        f"{_OPEN}, src/nvidia/src/kernel/gpu; public reports, branches 580 to 595",
    ),
    _notice(
        rf"{_FUNCTION}Fabric base addr [0-9a-f]+ is assigned to GPU ",
        "A GPU is registered with the fabric of NVSwitches.",
        f"{_OPEN}, src/nvidia/src/kernel/gpu/nvlink/arch/volta/kernel_nvlink_gv100.c",
    ),
    _notice(
        rf"{_FUNCTION}(?:No blacklisted pages(?!\S)|CC secret cleanup successful!|"
        r"RMAPI_GPU_LOCK_INTERNAL (?:alloc|free) requested without holding the RMAPI lock)",
        "The driver logs this message as an error, but the message reports no fault.",
        f"{_OPEN}, src/nvidia/src/kernel; NVIDIA/open-gpu-kernel-modules#583",
    ),
    _notice(
        rf"{_FUNCTION}(?:\*\*\* Chipset Setup Function Error!|"
        r"\w+ ACPI DSM called before _acpiDsmSupportedFuncCacheInit)",
        "The driver works without features of the machine's chipset or firmware.",
        f"{_OPEN}, src/nvidia/src/kernel/platform; NVIDIA/open-gpu-kernel-modules#421",
    ),
    _notice(
        r"(?:cpuidInfoAMD: Unrecognized AMD processor |CPUID: unknown implementer/part |"
        r"Chipset not recognized \()",
        "The driver does not know the name of the host's processor or chipset.",
        f"{_OPEN}, src/nvidia/src/kernel/platform",
    ),
    _notice(
        rf"GPU at (?:PCI:)?{_ADDRESS} has software scheduler (?:ENABLED|DISABLED) with policy ",
        "The message says how virtual GPUs share a GPU.",
        "nvidiavgpuarchive/index#1",
    ),
    _notice(
        rf"{_AT}UnbindLock (?:acquired|released)",
        "A program asked the driver to leave a GPU.",
        f"{_OPEN}, kernel-open/nvidia/nv-procfs.c",
    ),
    _notice(
        r"The temporary file path specified via the NVreg_TemporaryFilePath module parameter does "
        r"not exist\. Defaulting to /tmp\.",
        "The driver uses /tmp, since the configured folder does not exist.",
        OSINIT,
    ),
    _notice(
        r"(?:CPU does not support the PAT\.|builtin PAT support disabled\.|"
        r"PAT configuration unsupported\.)",
        "The message says how memory is mapped.",
        NV,
    ),
    _notice(
        r"(?:Applied patches:|Patch #\d+: )",
        "The message lists a patch with which the module was built.",
        NV,
    ),
    _notice(
        r"PCIe bus value picked from byte 3 offset in SRAT GI entry: [^\n]*(?: Hypervisor stack is "
        r"old and not following ACPI spec defined offset\.)?(?: Please consider upgrading the "
        r"Hypervisor stack[^\n]*)?",
        "The message says how a hypervisor describes memory.",
        NV_PCI,
    ),
    _notice(
        r"Your system is not currently configured to drive a VGA console on the primary VGA device\."
        r"(?:[^\0]{0,400}? and is not supported\.)?",
        "The driver does not drive the server's VGA console.",
        "public reports, branches 340 to 550",
    ),
    _notice(
        rf"{_AT}Failed to enable MSI; falling back to PCIe virtual-wire interrupts\.",
        "The driver uses virtual-wire interrupts instead of MSI.",
        NV,
    ),
    _notice(
        r"(?:Please see (?:'Appendix A|the 'Open Linux)|in this release's README, available on |"
        r"specific graphics driver download page at |Firmware' sections in |the Linux graphics driver "
        r"download page at|www\.nvidia\.com\.|Software documentation, available at |To force use of "
        r"Open nvidia\.ko on other GPUs|'OpenRmEnableUnsupportedGpus' kernel |in the README\.|"
        r"This can occur when |obtained ownership of |Try unloading the conflicting |reconfigure your "
        r"kernel without |driver\(s\)\), then try loading |again\.|occur when a driver such as |"
        r"ownership of the device's registers|nouveau, rivafb, |Please check your BIOS settings|"
        r"\[Plug & Play OS\] |\[Assign IRQ to VGA\] |nvidia-bug-report\.sh as root to collect |"
        r"the NVIDIA kernel module is unloaded|(?:this kernel module )?has the version |kernel module and "
        r"all NVIDIA |make sure that this kernel |components have |have the same version|BIOS or the |"
        r"This may be due to a known Linux kernel bug|was loaded and obtained ownership of |"
        r"immediately upstream of |a matching prefetchable |to your NVIDIA device is not |see the README "
        r"section on 64-bit |information\.|this kernel module has the version |the version )",
        "The line continues a message of several lines.",
        f"{OSAPI}; {NV}; {NV_PCI}",
    ),
)


@dataclass(frozen=True, kw_only=True)
class _Xids:
    """A set of Xid error numbers that have the same meaning."""

    numbers: tuple[int, ...]
    meaning: str
    severity: Severity = Severity.FAULT
    remedy: str = _RESET
    name: str = ""
    source: str = XID_CATALOGUE


def _application(numbers: tuple[int, ...], meaning: str, source: str = XID_CATALOGUE) -> _Xids:
    return _Xids(numbers=numbers, meaning=meaning, severity=Severity.APPLICATION, source=source)


_SUPPORT = "Look it up in NVIDIA's catalogue of Xids, and ask NVIDIA's support."
#: Xids, classified by the immediate action that NVIDIA's catalogue advises; "restart the
#: application" is not a fault of the GPU. The six Xids that the device plugin ignores are caused by
#: applications too.
_XIDS = (
    _application((13,), "An exception of the graphics engine.", DEVICE_PLUGIN),
    _application((31,), "A page fault of the GPU's memory.", DEVICE_PLUGIN),
    _application((43,), "The GPU stopped an application.", DEVICE_PLUGIN),
    _application((45,), "The driver ended an application's work on the GPU.", DEVICE_PLUGIN),
    _application((68, 83, 84, 88, 89, 96, 97, 98), "An exception of the video decoder.", DEVICE_PLUGIN),
    _application((109,), "A switch between applications took too long.", DEVICE_PLUGIN),
    _application((8, 11, 25, 32, 69, 80), "An application gave the GPU invalid work."),
    _application(
        (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "An exception of a copy engine."
    ),
    _application((60, 82, 86, *range(99, 106), 139), "An exception of an engine."),
    _application((174,), "The driver ended an application.", XID_NUMBERS),
    _Xids(
        numbers=(14, 37, 38, 44, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153),
        meaning="NVIDIA's catalogue says to ignore this Xid.",
        severity=Severity.NOTICE,
    ),
    _Xids(
        numbers=(162, 163),
        meaning="The circuit that smooths a GPU's power was switched on or off; the GPU needs no reset.",
        severity=Severity.NOTICE,
    ),
    _Xids(
        numbers=(164,),
        meaning="The circuit that smooths a GPU's power is almost worn out; the GPU needs no reset.",
        severity=Severity.NOTICE,
    ),
    _Xids(
        numbers=(165,),
        meaning="The circuit that smooths a GPU's power is worn out.",
        remedy="Replace the GPU, unless the data center absorbs its changes of power.",
    ),
    _Xids(
        numbers=(166, 170),
        meaning="An NVLink of a GPU has an error of confidential computing.",
        remedy=_SUPPORT,
    ),
    _Xids(numbers=(79,), meaning=LOST, remedy=_REBOOT, name=_LOST_NAME),
    _Xids(
        numbers=(48, 94, 95, 140, 171, 172),
        meaning="Errors of a GPU's memory were not corrected.",
        name="the GPU's memory has errors",
    ),
    _Xids(
        numbers=(63, 156),
        meaning="Memory of a GPU is retired at its next reset.",
        name="the GPU has to be reset",
    ),
    _Xids(
        numbers=(64, 157, 161),
        meaning="Bad memory of a GPU could not be retired.",
        name="the GPU's memory has errors",
        remedy="Reset the GPU; if it happens again, replace the GPU.",
    ),
    _Xids(numbers=(74, *range(144, 151), 155), meaning="An NVLink of a GPU has an error."),
    _Xids(
        numbers=(46, 62, 110, 119, 120, 136, 143, 158, 160, 167, 169, 173, 175),
        meaning="A GPU does not work until it is reset.",
        name="the GPU has to be reset",
    ),
    _Xids(numbers=(168,), meaning="A GPU has less memory than it should have."),
    _Xids(numbers=(151,), meaning="A key of confidential computing was not renewed."),
    _Xids(
        numbers=(54,),
        meaning="A GPU's power cables are not connected.",
        remedy="Connect the power cables.",
        name="the GPU has no power",
    ),
    _Xids(
        numbers=(78,),
        meaning="A virtual GPU could not start.",
        remedy="Install matching versions of the drivers of host and guest.",
    ),
    _Xids(
        numbers=(
            *range(1, 8), 9, 10, 12, *range(15, 25), *range(26, 31), *range(33, 37), 42, 47,
            *range(49, 54), *range(55, 60), 61, 65, 73, 81, 87, 90, 91, 108, *range(111, 119),
            *range(122, 126), 138, 142, 159,
        ),
        meaning="A GPU reported an error that sound GPUs do not have.",
        remedy=_SUPPORT,
    ),
)  # fmt: skip

_XID = r"Xid \((?:PCI:)?[^)\n]*\): "


def _of_xids(xids: _Xids) -> DriverWords:
    numbers = "|".join(map(str, xids.numbers))
    is_lost = xids.name == _LOST_NAME
    return DriverWords(
        text=rf"{_XID}(?P<xid>{numbers})\b",
        meaning="Xid {xid}: " + xids.meaning,
        severity=xids.severity,
        source=f"{xids.source}; {XID_NUMBERS}",
        remedy=xids.remedy if xids.severity is Severity.FAULT else "",
        name=xids.name,
        can_retry_help=not is_lost,
        can_rebuild_help=not is_lost,
    )


_FAULTY_XIDS = "|".join(
    str(number) for xids in _XIDS if xids.severity is Severity.FAULT for number in xids.numbers
)
_NO_MEMORY = DriverWords(
    text=(
        r"(?:GPU\d+ )?(?:nv(?:CheckOk|AssertOk)FailedNoLog: (?:Check|Assertion) failed: Out of memory "
        r"\[NV_ERR_NO_MEMORY\] \(0x0*51\) returned from (?:_memdescAllocInternal\(pMemDesc\)|"
        r"pRmApi->Alloc\(pRmApi, device->session->handle, )|"
        r"sysmemConstruct_IMPL: \*\*\* Cannot allocate sysmem through fb heap)"
    ),
    meaning="An application asked for more memory than is free.",
    severity=Severity.APPLICATION,
    source=f"{_OPEN}, src/nvidia/src/kernel/gpu/mem_mgr/mem_desc.c and rmapi/nv_gpu_ops.c; {_OPEN}#848",
)
_CONSEQUENCES = (
    _fault(
        rf"{_XID}45\b[^\n]* caused by previous Xid (?P<xid>{_FAULTY_XIDS})\b",
        "Xid 45: The driver ended an application's work, because of an error of the GPU (Xid {xid}).",
        KERNEL_RC,
        _RESET,
    ),
)

#: The end of the error code if the driver made an error of the receiver's pipe fatal. Drivers
#: before 575 and later drivers use different codes.
_PROMOTED = r"[0-9a-f]*(?:[4c]c2|86)\b"
#: The process that used the link; its name may contain commas and blanks, but has at most 15 characters.
_PROCESS = r"(?:pid=[^\n]*, )?"
_ON_LINK = r"XC\s*\d i\s*\d+ Link "
_NVLINKS = (
    _fault(
        rf"{_XID}(?P<xid>145), {_PROCESS}RLW_RXPIPE Non-?fatal {_ON_LINK}[^(\n]*\(0x{_PROMOTED}",
        "Xid {xid}: An NVLink of a GPU has an error.",
        XID_CATALOGUE,
        _RESET,
    ),
    _notice(
        rf"{_XID}14[4-9], {_PROCESS}[\w/]+ Non-?fatal {_ON_LINK}",
        "An error of an NVLink that was not fatal; if it ends work, Xid 154 follows.",
        XID_CATALOGUE,
    ),
)

_RECOVERY_CHANGES = (
    _notice(
        rf"{_XID}154\b[^\n]* to (?:0x0 )?\(?None\)?",
        "A GPU needs no recovery any more.",
        XID_CATALOGUE,
    ),
    _fault(
        rf"{_XID}154\b[^\n]* to (?:0x[0-9a-f]+ )?\(?(?P<action>[^)\n]+)\)?",
        "Xid 154: A GPU has to be recovered ({action}).",
        XID_CATALOGUE,
        _RESET,
        name="the GPU has to be reset",
    ),
)

_SXID = r"(?:nvidia-nvswitch\d+: )?SXid \((?:PCI:)?[^)\n]*\): "
_FATAL_SXIDS = "|".join(
    map(
        str,
        (
            *(10003, 10004, 10006, 10007, 10008, 20034, 22003, 22011),
            *range(26001, 26008),
            *range(27001, 27008),
            *(28001, 28003, 28005),
        ),
    )
)
_SXIDS = (
    _fault(
        rf"{_SXID}(?P<sxid>\d+), (?:Fatal\b|Severity 1\b)",
        "SXid {sxid}: An NVSwitch has a fatal error.",
        f"{NVSWITCH}; {FABRIC_GUIDE}",
        "Reset the GPUs and switches, or reboot the node; if it happens again, have the machine repaired.",
        name="an NVSwitch has a fatal error",
    ),
    _notice(
        rf"{_SXID}\d+, (?:Non-?fatal\b|Correctable\b|Severity 0\b|Data \{{)",
        "An NVSwitch had an error that was not fatal, or this line has data of such an error.",
        NVSWITCH,
    ),
    _notice(
        rf"{_SXID}(?:10001|10002|10005|22013|26008|28002|28004)\b",
        "An event of an NVSwitch.",
        SXID_NUMBERS,
    ),
    _fault(
        rf"{_SXID}(?P<sxid>{_FATAL_SXIDS})\b",
        "SXid {sxid}: An NVSwitch has a fatal error.",
        f"{SXID_NUMBERS}; {FABRIC_GUIDE}",
        "Reset the GPUs and switches, or reboot the node; if it happens again, have the machine repaired.",
        name="an NVSwitch has a fatal error",
    ),
)

_MODULE = r"nvidia[\w-]*: "
_NOT_THIS_KERNEL = "Build the module for the running kernel (`dkms autoinstall`)."
_MODULES = (
    _notice(
        rf"{_MODULE}module verification failed: signature and/or required key missing - tainting kernel",
        "The module has no signature, and the kernel requires none.",
        LINUX_MODULES,
    ),
    _notice(
        rf"{_MODULE}unknown parameter '[^'\n]*' ignored",
        "A file in modprobe.d sets an option that this release of the module does not have.",
        "Linux, kernel/params.c",
    ),
    _fault(
        rf"(?:module )?{_MODULE}(?:version magic '[^'\n]*' should be |disagrees about version of symbol |"
        r"Unknown symbol |\.gnu\.linkonce\.this_module section size must match )",
        "A module of the driver was built for another kernel, or for another version of the driver.",
        LINUX_MODULES,
        _NOT_THIS_KERNEL,
        name="the driver's module is for another kernel",
        helps="build",
    ),
    _fault(
        r"nvidia(?: [0-9a-f:.]+: probe with driver nvidia|: probe of [0-9a-f:.]+) failed with error -\d+",
        "The driver could not be bound to a GPU that is on the bus.",
        "Linux, drivers/base/dd.c",
        _SEE_ABOVE,
    ),
    _notice(
        rf"nvidia {_ADDRESS}: (?:AER: )?(?:PCIe Bus Error: severity=Correct(?:ed|able)|device \[[^\]\n]*\] error "
        r"status/mask=|(?:Multiple )?Correct(?:ed|able) error|\[\s*\d+\] |"
        r"Error of this Agent(?:\([0-9a-f]+\))? is reported first)",
        "The bus had an error that was corrected, or this line has details of such an error.",
        LINUX_PCI,
    ),
    _notice(
        rf"(?:nvidia-modeset: WARNING: |nvidia {_ADDRESS}: \[drm\] (?:Cannot find any crtc|No compatible format)|"
        r"\[drm[^\n]*?\[nvidia-drm\] \[GPU ID 0x[0-9a-f]+\] Failed to grab (?:NVKMS )?modeset ownership)",
        "The message is about displays, and a node has no display.",
        "Linux, drivers/gpu/drm",
    ),
    _notice(
        rf"nvidia-gpu {_ADDRESS}: i2c timeout error e0000000",
        "Nothing is connected to the USB port of a GPU.",
        "Linux, drivers/i2c/busses/i2c-nvidia-gpu.c",
    ),
    _notice(
        r"nvidiafb: unknown NV_ARCH",
        "Linux's own driver of old GPUs does not support the GPU, and other drivers may use it.",
        "Linux, drivers/video/fbdev/nvidia",
    ),
    _notice(
        r"nvidia-peermem nv_get_p2p_free_callback:\d+ ERROR detected invalid context, skipping ",
        "The driver skipped memory for RDMA that an application had already released.",
        f"{_OPEN}, kernel-open/nvidia-peermem",
    ),
    _fault(
        r"nvidia-nvswitch: Version mismatch, kernel version (?P<version>\S+) user version \S+",
        "The fabric manager and the driver's module have different versions.",
        f"{_OPEN}, kernel-open/nvidia/linux_nvswitch.c",
        "Install the fabric manager in the version of the driver.",
        name="the driver's programs and module differ",
        helps="build",
    ),
    _notice(
        rf"nvidia {_ADDRESS}: (?:can't derive routing for )?PCI INT \w(?:: no GSI|: not connected)?",
        "The message says how a hypervisor routes interrupts; the driver uses other interrupts.",
        "Linux, drivers/acpi/pci_irq.c",
    ),
    _fault(
        rf"nvidia {_ADDRESS}: (?:AER: )?(?:PCIe Bus Error: severity=Uncorrect(?:ed|able)|can't recover|"
        # The kernel logs `aer_uncor_severity` for an uncorrected error that the firmware reported
        # (APEI).
        r"aer_uncor_severity: )",
        "The bus of a GPU has errors that were not corrected.",
        LINUX_PCI,
        _REBOOT,
        name="the GPU's bus has errors",
    ),
    _fault(
        r"\[drm[^\n]*?\[nvidia-drm\] \[GPU ID 0x[0-9a-f]+\] Failed to allocate NvKmsKapiDevice",
        "The driver could not initialise a GPU.",
        f"{_OPEN}, kernel-open/nvidia-drm",
        _SEE_ABOVE,
    ),
)

KERNEL_WORDS = (
    *_REFUSALS,
    *_CONSEQUENCES,
    _NO_MEMORY,
    *_RECOVERY_CHANGES,
    *_NVLINKS,
    *map(_of_xids, _XIDS),
    *_SXIDS,
    *_LOSSES,
    *_MEMORY_WINDOWS,
    *_STARTS,
    *_MODULES,
    *_NOTICES,
)
"""Texts of the kernel's log, matched at their beginning; the first match counts."""

CORRUPT_INFOROM = _fault(
    r"infoROM is corrupted",
    "The GPU's infoROM is corrupted; the machine needs repair.",
    SMI,
    "Have the machine repaired.",
    name="the GPU's infoROM is corrupted",
    helps="",
)
LOST_GPU = _fault(
    r"GPU is lost|GPU has fallen off the bus|Unable to determine the device handle for GPU[^\n]{0,100}"
    r"(?:Unknown Error|GPU is lost)",
    LOST,
    f"{SMI}; NVIDIA/open-gpu-kernel-modules#387",
    _REBOOT,
    name=_LOST_NAME,
    helps="",
)
RESET_REQUIRED = _fault(
    r"GPU requires reset",
    "A GPU does not work until it is reset.",
    SMI,
    _RESET,
    name="the GPU has to be reset",
    helps="",
)
MISMATCH = _fault(
    r"Driver/library version mismatch",
    "The driver's programs and its loaded module have different versions.",
    SMI,
    _MATCHING,
    name="the driver's programs and module differ",
    helps="build",
)
NO_LIBRARY = _fault(
    r"couldn't find libnvidia-ml\.so library",
    "The library of the driver's programs (NVML) is not installed.",
    SMI,
    "Install the driver's userspace in the version of its module, and run `ldconfig`.",
    name="the driver's library is missing",
    helps="build",
)
NO_POWER = _fault(
    r"Unable to communicate with GPU because it is insufficiently powered",
    "A GPU's power cables are not connected.",
    SMI,
    "Connect the power cables.",
    name="the GPU has no power",
    helps="",
)
_SIGN = "Sign the module with a key that the firmware trusts, or turn Secure Boot off."
#: The beginning of the error that modprobe, insmod (also BusyBox's) and NVIDIA's installer print
#: for a module that cannot be loaded.
_INSERT = (
    r"(?:(?:(?:could not|can't) (?:insert|load module)|inserting|insert module) '?[^'\n:]{0,200}nvidia[^'\n:]{0,40}'?|"
    r"Kernel module load error): "
)
TOOL_WORDS = (
    CORRUPT_INFOROM,
    LOST_GPU,
    RESET_REQUIRED,
    NO_POWER,
    MISMATCH,
    NO_LIBRARY,
    _fault(
        rf"{_INSERT}(?:Key was rejected by service|Required key not available|Operation not permitted)|"
        r"The kernel module failed to load\. (?:Secure boot is enabled|CONFIG_MODULE_SIG_FORCE is set)",
        "The kernel refuses the driver's module, because its signature is missing or not trusted.",
        KMOD,
        _SIGN,
        name="the driver's module is not signed",
        helps="",
    ),
    _fault(
        r"Loading of (?:unsigned module|module with unavailable key) is rejected",
        "The kernel refuses a module, because its signature is missing or not trusted.",
        "Linux, kernel/module; NVIDIA/gpu-operator#1726",
        _SIGN,
        # A log may contain this message about any module.
        helps="",
    ),
    _fault(
        rf"{_INSERT}Permission denied",
        "A security policy of the system keeps the driver's module from being loaded.",
        f"{KMOD}; NVIDIA/gpu-operator#553",
        "Allow the module in the policy (SELinux, AppArmor).",
        name="the driver's module is not allowed",
        helps="",
    ),
    _fault(
        rf"{_INSERT}(?:Exec format error|Invalid module format|Unknown symbol in module)",
        "A module of the driver was built for another kernel, or for another version of the driver.",
        KMOD,
        _NOT_THIS_KERNEL,
        name="the driver's module is for another kernel",
        helps="build",
    ),
    _fault(
        r"The Nouveau kernel driver is currently in use",
        "Another driver is bound to a GPU.",
        "NVIDIA's installer",
        _OTHER_DRIVER,
        name="another driver is bound to the GPU",
        helps="",
    ),
    _fault(
        r"Module nvidia\S* not found in directory",
        "The running kernel has no module of the driver.",
        KMOD,
        _NOT_THIS_KERNEL,
        name="the driver's module is missing",
        helps="build",
    ),
    _fault(
        r"No (?:devices (?:were )?found|supported GPUs were found)",
        "The driver has no GPU that works.",
        f"{SMI}; kubernetes-sigs/dra-driver-nvidia-gpu#1008",
        "Look for 'NVRM' in the kernel log.",
    ),
    _fault(
        # A row of the table; other programs print 'ERR!' too, such as npm. The power usage of a sound
        # GPU may be 'ERR! / 250W' for a while (Azure/azhpc-diagnostics#77), or always 'ERR! / N/A'.
        r"(?m:^)\|[^\n]{0,200}(?:\bERR!(?!\s*/\s*(?:\d+W|N/A))|Unknown Error)[^\n]{0,200}\|",
        "A GPU did not answer a question of `nvidia-smi`.",
        SMI,
        _RESET,
    ),
)
"""Texts of `nvidia-smi` and of programs that load modules, anywhere in their output."""

SMI_EXIT_CODES = {8: NO_POWER, 14: CORRUPT_INFOROM, 15: LOST_GPU, 16: RESET_REQUIRED, 18: MISMATCH}
"""The meanings of `nvidia-smi`'s exit codes, used if its output has no known text."""
