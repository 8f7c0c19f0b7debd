"""The table of known messages of the driver."""

from __future__ import annotations

from harness.provisioning.driver_messages import DriverMessage, find_tool_words, parse_messages
from harness.provisioning.driver_words import (
    CORRUPT_INFOROM,
    KERNEL_WORDS,
    LOST_GPU,
    MISMATCH,
    NO_POWER,
    RESET_REQUIRED,
    SMI_EXIT_CODES,
    TOOL_WORDS,
    Severity,
)

from .driver_logs import PUBLIC_LOGS

TABLE = (*KERNEL_WORDS, *TOOL_WORDS)
#: The application Xids of NVIDIA's device plugin.
APPLICATION_XIDS = (13, 31, 43, 45, 68, 109)
_INVALID_BAR = "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n"
_BAR1 = "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:05:00.0)\n"
_VGPU = "The NVIDIA vGPU 0000:0b:00.0 (PCI ID: 10de:2bb5)\n"
_GPU = "The NVIDIA GPU 0000:0b:00.0 (PCI ID: 10de:2bb5)\n"

_TEMPORARY_PATH = (
    "NVRM: The temporary file path specified via the NVreg_TemporaryFilePath\n"
    "NVRM: module parameter does not exist. Defaulting to /tmp."
)
_SRAT = (
    "NVRM: PCIe bus value picked from byte 3 offset in SRAT GI entry: 0x1 0x2 0x3 0x4  PXM: 5\n"
    "NVRM: Hypervisor stack is old and not following ACPI spec defined offset."
)
_CONSOLE = (
    "NVRM: Your system is not currently configured to drive a VGA console\n"
    "NVRM: on the primary VGA device. The NVIDIA Linux graphics driver\n"
    "NVRM: requires the use of a text-mode VGA console. Use of other console\n"
    "NVRM: drivers including, but not limited to, vesafb, may result in\n"
    "NVRM: corruption and stability problems, and is not supported."
)


def severity_of(message: DriverMessage) -> Severity | None:
    return None if message.words is None else message.words.severity


def test_each_entry_of_the_catalogue_has_a_meaning_and_each_fault_has_a_remedy() -> None:
    for words in TABLE:
        assert words.source, words
        assert words.meaning.endswith("."), words
        assert bool(words.remedy) is words.condemns_node, words
        assert words.condemns_node or not words.name, words
        assert words.condemns_node or (words.can_retry_help and words.can_rebuild_help), words
        assert not words.is_refusal or not words.can_rebuild_help, words
        assert not words.can_retry_help or words.can_rebuild_help, words


def test_each_pattern_for_driver_messages_matches_a_sample_text() -> None:
    texts = [
        *(text for text, *_ in FAULTS),
        *NOTICES,
        *(f"NVRM: {line}" for line in REST),
        *(f"NVRM: Xid (PCI:0000:01:00): {said}" for said in (*_OF_CLASS, *NVLINKS)),
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 26006, SOE HALTED",
    ]
    messages = parse_messages("\n".join([*texts, *(each.text for each in PUBLIC_LOGS)]))
    used = {message.words.pattern for message in messages if message.words is not None}

    unused = [words.pattern.pattern for words in KERNEL_WORDS if words.pattern not in used]
    assert unused == []


def test_fatal_error_of_an_nvswitch_is_known_even_if_its_line_has_no_severity() -> None:
    fatal = [
        *(10003, 10004, 10006, 10007, 10008, 20034, 22003, 22011),
        *range(26001, 26008),
        *range(27001, 27008),
        *(28001, 28003, 28005),
    ]
    for sxid in fatal:
        said = f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {sxid}, Link 48\n"
        (message,) = parse_messages(said)

        assert message.condemns_node, said
        assert message.describe().startswith(f"SXid {sxid}: An NVSwitch has a fatal error.")


def test_each_xid_of_the_catalogue_matches_exactly_one_pattern() -> None:
    severities = {
        xid: [
            words.severity
            for words in KERNEL_WORDS
            if words.pattern.match(
                f"Xid (PCI:0000:01:00): {xid}, pid=1 to 0x1 (GPU Reset Required)"
            )
        ]
        for xid in range(1, 176)
    }

    assert {xid: found for xid, found in severities.items() if len(found) != 1} == {}
    assert [severities[xid] for xid in APPLICATION_XIDS] == [[Severity.APPLICATION]] * 6


#: Xids of NVLinks, each beginning with its number, with the severity for the GPU.
NVLINKS = {
    "144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008 0x00000000)": Severity.NOTICE,
    "145, RLW_CTRL Nonfatal XC0 i0 Link 00 (0x00000003 0x80000000 0x00000000)": Severity.NOTICE,
    "145, RLW_REMAP Fatal   XC1 i0 Link 10 (0x00000082 0x00000040 0x00000000)": Severity.FAULT,
    "145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)": Severity.NOTICE,
    "145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a4c2 0x00000001 0x00000001)": Severity.FAULT,
    "145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409acc2 0x00000001 0x00000001)": Severity.FAULT,
    "145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x00000086 0x00000001 0x00000001)": Severity.FAULT,
    "145, RLW_RXPIPE Fatal XC0 i0 Link 13 (0x00000006 0x00000001 0x00000001)": Severity.FAULT,
    "149, NETIR_BER_EVENT  Nonfatal  XC0 i0 Link -1 (0x00000013 0x00000001)": Severity.NOTICE,
    "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)": Severity.FAULT,
    "149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]": Severity.FAULT,
    "150, MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x00000000 0x00000000)": Severity.FAULT,
    "150, MSE_WATCHDOG Nonfatal XC0 i0 Link -1 (0x00000000 0x00000000)": Severity.FAULT,
    "149, words that nobody knows": Severity.FAULT,
    "145, pid=11436, name=cache_mgr_main, RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x040868e2)": Severity.NOTICE,
    "145, pid=876767, name=ray::W, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)": Severity.NOTICE,
    "145, pid=876767, name=ray::W, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a4c2)": Severity.FAULT,
    "145, pid=9, name=a, R Nonfatal, RLW_CTRL Fatal XC0 i0 Link 03 (0x00000003)": Severity.FAULT,
    "146, TLW_RX/TLW_RX_PIPE0 Nonfatal XC0 i0 Link 00 (0x0000000a 0x00000001)": Severity.NOTICE,
    "146, TLW_RX/TLW_RX_PIPE0 Fatal XC0 i0 Link 00 (0x0000000a 0x00000004)": Severity.FAULT,
    "149, NETIR_BER_EVENT Nonfatal XC 1 i 2 Link 01 [0x00000013]": Severity.NOTICE,
}


def test_nvlink_error_that_is_not_fatal_leaves_the_node_healthy() -> None:
    """NVIDIA's catalogue decodes Xids 144 to 150; the driver makes some RLW_RXPIPE errors fatal."""
    form = "[ 9.1] NVRM: Xid (PCI:0018:01:00): {}\n"

    seen = {said: [*map(severity_of, parse_messages(form.format(said)))] for said in NVLINKS}
    assert seen == {said: [severity] for said, severity in NVLINKS.items()}


def test_message_that_matches_known_words_only_partially_is_unknown() -> None:
    texts = [
        *("GPUis lost, skipping x", "GPU is lost,skipping x", "RmInitAdapterfailed! (0x26)"),
        "_gpuFabricProbeRbmSleepLinks: Error setting links to sleep on linkmask 0x0003",
        "knvlinkSetUniqueFabricBaseAddress_GH100: Fabric base addr is already assigned to GPU 3",
        "nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from x",
        *(f"Xid (PCI:0000:01:00): {xid}, pid=1" for xid in (0, 176, 177, 200, 1300, 790)),
    ]

    seen = {said: [*map(severity_of, parse_messages(f"[1.1] NVRM: {said}\n"))] for said in texts}
    assert seen == {said: [None] for said in texts}


#: Whether a build of the same driver may help if a program prints this text; a retry never helps.
MAY_BUILD = {
    "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service": False,
    "[ 9.1] Loading of unsigned module is rejected": False,
    "modprobe: ERROR: could not insert 'nvidia': Permission denied": False,
    "insmod: ERROR: could not insert module /opt/nvidia/nvidia.ko: Unknown symbol in module": True,
    "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.1.0-56": True,
    "Failed to initialize NVML: Driver/library version mismatch": True,
}


def test_failed_load_of_a_module_is_not_retried_but_may_be_fixed_by_a_build() -> None:
    """gpu-driver-container 44, gpu-operator 553 and 1726, and AKS 5860 report such failures."""
    found = {output: find_tool_words(output) for output in MAY_BUILD}

    seen = {
        output: words and (words.can_retry_help, words.can_rebuild_help)
        for output, words in found.items()
    }
    assert seen == {output: (False, may_build) for output, may_build in MAY_BUILD.items()}


_LOST, _RESET = "the GPU is lost", "the GPU has to be reset"
_NOT_SUPPORTED = "the driver does not support the GPU"
_NO_REGION = "the firmware gave the GPU no memory region"
_OTHER_KERNEL = "the driver's module is for another kernel"
_AER = "nvidia 0000:01:00.0: AER: "
#: Messages of faults: the name of the common cause, and whether a retry or a build may help.
FAULTS = (
    (f"NVRM: {_GPU}NVRM: installed in this system is not supported by the\nNVRM: NVIDIA 535.1 driver release.", _NOT_SUPPORTED, ""),
    (f"NVRM: {_GPU}NVRM: installed in this system requires use of the NVIDIA open kernel modules.", _NOT_SUPPORTED, ""),
    (f"NVRM: {_GPU}NVRM: installed in this system is not supported by open\nNVRM: nvidia.ko because it does not include the required GPU\nNVRM: System Processor (GSP).", _NOT_SUPPORTED, ""),
    (f"NVRM: {_VGPU}NVRM: installed in this vGPU host system is not supported by open nvidia.ko.", _NOT_SUPPORTED, ""),
    (f"NVRM: {_VGPU}NVRM: installed in this system is not supported by open\nNVRM: nvidia.ko.", _NOT_SUPPORTED, ""),
    ("NVRM: Open nvidia.ko is only ready for use on Data Center GPUs.", _NOT_SUPPORTED, ""),
    ("NVRM: The Tesla K80 GPU installed in this system is supported through the NVIDIA 470.xx Legacy driver.", _NOT_SUPPORTED, ""),
    ("NVRM: ignoring the legacy GPU 0000:01:00.0", _NOT_SUPPORTED, ""),
    (f"NVRM: {_GPU}NVRM: installed in this system has fallen off the bus and is not responding to commands.", _LOST, ""),
    ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", _LOST, ""),
    ("NVRM: GPU at PCI:0000:01:00.0 has fallen off the bus.", _LOST, ""),
    ("NVRM: GPU has fallen off the bus.", _LOST, ""),
    ("NVRM: has fallen off the bus.", _LOST, ""),
    ("NVRM: GPU is lost, skipping nvidia_ioctl", _LOST, ""),
    ("NVRM: GPU0 _intrServiceStallCommonCheckBegin: Failed GPU reg read : 0xffffffff. Check whether GPU is present on the bus", _LOST, ""),
    ("NVRM: nvAssertFailed: gone [NV_ERR_GPU_IS_LOST] (0x0F)", _LOST, ""),
    ("nvidia 0000:01:00.0: can't change power state from D3cold to D0 (config space inaccessible)", _LOST, ""),
    ("nvidia 0000:01:00.0: can't change power state from D3hot to D0 (config space inaccessible)", _LOST, ""),
    ("nvidia 0000:01:00.0: Unable to change power state from D3hot to D0, device inaccessible", _LOST, ""),
    ("nvidia 0000:01:00.0: Unable to change power state from unknown to D0, device inaccessible", _LOST, ""),
    ("nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible", _LOST, ""),
    ("NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.", _LOST, ""),
    ("NVRM: nvAssertFailed: reset [NV_ERR_RESET_REQUIRED] (0x84)", _RESET, ""),
    ("NVRM: A GPU crash dump has been created. If possible, please run", "", "retry build"),
    (f"{_INVALID_BAR}NVRM: BAR0 is 0M @ 0x0 (PCI:0000:05:00.0)", _NO_REGION, ""),
    (f"{_INVALID_BAR}NVRM: BAR0 is 0M @ 0x0 (PCI:0000:05:00.0)\nNVRM: None of the NVIDIA devices were initialized.", _NO_REGION, ""),
    (f"{_INVALID_BAR}NVRM: BAR12 is 0M @ 0x0 (PCI:0000:05:00.0)\nNVRM: None of the NVIDIA devices were initialized.", _NO_REGION, ""),
    (f"{_INVALID_BAR}{_BAR1}NVRM: The NVIDIA probe routine failed for 1 device(s).", _NO_REGION, ""),
    *((f"{_INVALID_BAR}{bar}NVRM: The system BIOS may have misconfigured your GPU.", _NO_REGION, "") for bar in (_BAR1, _BAR1.replace("BAR1", "BAR0"))),
    (f"{_INVALID_BAR}{_BAR1}NVRM: None of the NVIDIA graphics adapters were initialized!", _NO_REGION, ""),
    (f"{_INVALID_BAR}{_BAR1}nvidia 0000:05:00.0: probe with driver nvidia failed with error -1", _NO_REGION, ""),
    (f"{_INVALID_BAR}{_BAR1}nvidia: probe of 0000:05:00.0 failed with error -1", _NO_REGION, ""),
    ("NVRM: This is a 64-bit BAR mapped above 16GB by the system", "", ""),
    ("NVRM: No address space to allocate resized BAR1.", "", ""),
    ("NVRM: FATAL: Failed to re-allocate BAR1.", "", ""),
    ("NVRM: Fatal Error while attempting to resize PCIe BARs.", "", ""),
    ("NVRM: request_mem_region failed for 16M @ 0xe0000000. This can", "", ""),
    ("NVRM: pci_enable_device failed, aborting", "", "retry build"),
    ("NVRM: failed to map registers!", "", "retry build"),
    ("NVRM: failed to wait for bar firewall to lower", "", "retry build"),
    ("NVRM: Device start failed for 0000:01:00.0", "", "retry build"),
    ("NVRM: Can't find an IRQ for your NVIDIA card!", "", ""),
    ("NVRM: GPU 0000:01:00.0: No interrupts of any type are available. Cannot use this GPU.", "", ""),
    ("NVRM: GPU 0000:01:00.0: Tried to get IRQ 11, but another driver\nNVRM: has it and is not sharing it.\nNVRM: You may want to verify that no audio driver is using the IRQ.", "", ""),
    *(
        (f"NVRM: GPU 0000:01:00.0: {said}", "", "retry build")
        for said in (
            "request_irq() failed (-22)",
            "Failed to map regs registers!!",
            "rm_init_private_state() failed!",
            "PCI channel for the device is offline",
            "A fatal error was detected.",
            "The kernel has enabled MMIO for the device,\nNVRM: but it still appears unreachable. The device\nNVRM: will not function properly until it is reset.",
        )
    ),
    ("NVRM: rm_init_rm() failed!", "", "retry build"),
    ("NVRM: failed to initialize module.", "", "retry build"),
    *((f"NVRM: {gpu}RmInitAdapter failed! (0x26:0x56:1463)", "the driver could not initialise the GPU", "retry build") for gpu in ("", "GPU0 ", "GPU 0000:01:00.0: ")),
    ("NVRM: The NVIDIA probe routine failed for 2 device(s).", "", "retry build"),
    ("NVRM: None of the NVIDIA devices were initialized.", "", "retry build"),
    ("NVRM: None of the NVIDIA graphics adapters were initialized!", "", "retry build"),
    ("NVRM: No NVIDIA devices probed.", "", "retry build"),
    ("NVRM: The NVIDIA probe routine was not called for 2 device(s).", "another driver is bound to the GPU", ""),
    ("NVRM: GPU 0000:01:00.0 is already bound to vfio-pci.", "another driver is bound to the GPU", ""),
    *((f"NVRM: {gpu}GPU does not have the necessary power cables connected.", "the GPU has no power", "") for gpu in ("", "GPU0 ", "GPU 0000:01:00.0: ")),
    ("NVRM: API mismatch: the client has the version 580.1, but", "the driver's programs and module differ", "build"),
    *((f"NVRM: {gpu}RmFetchGspRmImages: No firmware image found", "the GPU's firmware is missing", "build") for gpu in ("", "GPU0 ", "GPU 0000:01:00.0: ")),
    ("nvidia 0000:01:00.0: Direct firmware load for nvidia/580.1/gsp_ga10x.bin failed with error -2", "the GPU's firmware is missing", "build"),
    *((f"NVRM: {gpu}_kgspFwContainerVerifyVersion: GSP firmware image version {said}, expected version 570.190", "the driver's programs and module differ", "build") for gpu in ("", "GPU0 ") for said in ("mismatch: got version 570.172.08", "unknown or malformed")),
    *((f"NVRM: {gpu}_kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP", _RESET, "") for gpu in ("", "GPU0 ")),
    ("NVRM: GPU7 _kgspBootGspRm: (the GPU is likely in a bad state and may need to be reset)", _RESET, ""),
    ("NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:01:00 (printing 1 of every 30).", _RESET, "retry build"),
    *((f"NVRM: {gpu}_kgspRpcRecvPoll: Timeout after 75s of waiting for RPC response from GPU0 GSP! Expected function 76", _RESET, "retry build") for gpu in ("", "GPU0 ")),
    *(
        (f"NVRM: {gpu}{said}", _RESET, "retry build")
        for gpu in ("", "GPU0 ")
        for said in (
            "_kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 812751949 heartbeat 1899482",
            "_kgspIsHeartbeatTimedOut: GSP RM heartbeat timed out",
            "_kgspIsHeartbeatTimedOut: LibOS heartbeat timed out",
            "_kgspLogRpcTimeout: ********************************* GSP Timeout **********************************",
            "_kgspLogRpcTimeout: =============== GSP-RM unresponsive ==================",
            "_kgspLogRpcTimeout: ================ GSP core unresponsive ===============",
            "_kgspRpcSanityCheck: GPU0 sanity check failed 0xf waiting for RPC response from GSP. Expected function 76",
            "_issueRpcAndWait: rpcRecvPoll timedout for fn 76 sequence 4129!",
            "nvAssertFailedNoLog: Assertion failed: Back to back GSP RPC timeout detected! GPU marked for reset @ kernel_gsp.c:2387",
        )
    ),
    *((f"NVRM: {gpu}nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.", _RESET, "") for gpu in ("", "GPU0 ")),
    *((f"NVRM: {gpu}krcWatchdog_IMPL: RC watchdog: GPU is probably locked!", _RESET, "retry build") for gpu in ("", "GPU0 ")),
    *(
        (f"NVRM: {gpu}{said}", "", "retry build")
        for gpu in ("", "GPU0 ")
        for said in (
            "knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
            "knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
        )
    ),
    ("NVRM: Attempting to remove device 0000:01:00.0 with non-zero usage count!", "", "retry build"),
    *(
        (f"NVRM: {gpu}{said}", "", "retry build")
        for gpu in ("", "GPU0 ", "GPU 0000:01:00.0: ")
        for said in (
            "rm_init_adapter failed, device minor number 0",
            "rm_init_adapter(0) failed",
            "RmInitNvDevice failed, bailing out of RmInitAdapter",
            "RmInitAdapter: Cannot initialize GSP firmware RM",
            "osInitNvMapping: *** Cannot attach gpu",
            "nvidia_frontend_open: minor 0, module->open() failed, error -5",
            "kgspInitRm_IMPL: cannot bootstrap riscv/gsp: 0x62",
            "kgspBootstrap_TU102: GSP-RM failed to boot",
            "_kgspBootGspRm: failed",
            "kgspWaitForGfwBootOk_TU102: failed to wait for GFW boot complete",
            "kgspHealthCheck_TU102: ****************************** GSP-CrashCat Report",
            "kfspPollForQueueEmpty_IMPL: Timed out waiting for FSP command queue to be empty.",
            "kfspWaitForSecureBoot_GH100: Timed out waiting for Secure Boot",
            "kfspSendBootCommands_GH100: Sent following content to FSP: ",
            "kfspDumpDebugState_GH100: NV_PFSP_FALCON_COMMON_SCRATCH_GROUP_2(0) = 0x9f",
            "kgspExecuteFwsec_TU102: failed to execute FWSEC for FRTS: FRTS error code 0x492f",
            "gpuWaitForGfwBootComplete_TU102: failed to wait for GFW_BOOT: (progress 0x3)",
        )
    ),
    ("nvidia: version magic '6.1.0-55 SMP ' should be '6.1.0-56 SMP '", _OTHER_KERNEL, "build"),
    ("nvidia_drm: disagrees about version of symbol drm_dev_put", _OTHER_KERNEL, "build"),
    ("module nvidia: .gnu.linkonce.this_module section size must match the kernel's built struct module size at run time", _OTHER_KERNEL, "build"),
    ("nvidia-uvm: Unknown symbol nvUvmInterfaceInit (err -2)", _OTHER_KERNEL, "build"),
    ("nvidia 0000:01:00.0: probe with driver nvidia failed with error -1", "", "retry build"),
    ("nvidia: probe of 0000:0b:00.0 failed with error -1", "", "retry build"),
    ("nvidia-nvswitch: Version mismatch, kernel version 535.129.03 user version 535.161.07", "the driver's programs and module differ", "build"),
    ("nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", "the GPU's bus has errors", "retry build"),
    ("nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer", "the GPU's bus has errors", "retry build"),
    *((f"{aer}aer_uncor_severity: 0x00062011", "the GPU's bus has errors", "retry build") for aer in (_AER, "nvidia 0000:01:00.0: ")),
    (f"{_AER}PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible", "the GPU's bus has errors", "retry build"),
    (f"{_AER}can't recover (no error_detected callback)", "the GPU's bus has errors", "retry build"),
    ("[drm:nv_drm_load [nvidia-drm]] *ERROR* [nvidia-drm] [GPU ID 0x00000100] Failed to allocate NvKmsKapiDevice", "", "retry build"),
    ("NVRM: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "an NVSwitch has a fatal error", "retry build"),
    ("nvidia-nvswitch3: SXid (0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "an NVSwitch has a fatal error", "retry build"),
    ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 1 Engine instance 48", "an NVSwitch has a fatal error", "retry build"),
    ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", _RESET, "retry build"),
    ("NVRM: Xid (0000:01:00): 154, GPU recovery action changed from None to Node Reboot Required", _RESET, "retry build"),
)  # fmt: skip
#: Messages that the driver of a sound GPU logs too.
NOTICES = (
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@)",
    "NVRM: ignore invalid BAR failure for BAR2",
    "NVRM: No NVIDIA GPU found.",
    "NVRM: GPU Board Serial Number: 1",
    "NVRM: Persistence mode is deprecated and will be removed in a future release.",
    _TEMPORARY_PATH,
    "NVRM: CPU does not support the PAT.",
    "NVRM: Applied patches:",
    _SRAT,
    _CONSOLE,
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Nonfatal, Link 48 LTSSM Fault Up",
    "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "nvidia 0000:01:00.0: [drm] Cannot find any crtc or sizes",
    "nvidia-modeset: WARNING: GPU:0: Unable to read EDID for display device DP-0",
    "nvidia 0000:00:06.0: can't derive routing for PCI INT A",
    f"{_INVALID_BAR}NVRM: BAR12 is 0M @ 0x0 (PCI:0000:05:00.0)",
    f"{_INVALID_BAR}{_BAR1}",
    "NVRM: No NVIDIA PCI devices found.",
    "NVRM: No NVIDIA graphics adapter probed!",
    "NVRM: No NVIDIA graphics adapter found!",
    "NVRM: GPU at PCI:0000:a1:00: GPU-979426f2-893a-7cbb-c4cf-81472f89a462",
    "NVRM: GPU at PCI:0000:a1:00.0: GPU-979426f2-893a-7cbb-c4cf-81472f89a462",
    "NVRM: GPU at 0000:03:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7",
    "NVRM: GPU at 0000:01:00.0 has software scheduler ENABLED with policy BEST_EFFORT.",
    "NVRM cpuidInfoAMD: Unrecognized AMD processor in cpuidInfoAMD",
    "NVRM objClInitPcieChipset: *** Chipset Setup Function Error!",
    "NVRM: testIfDsmSubFunctionEnabled: GPS ACPI DSM called before _acpiDsmSupportedFuncCacheInit subfunction = 11.",
    "nvidia_drm: unknown parameter 'fbdev' ignored",
    "NVRM: cpuidInfoAMD: Unrecognized AMD processor 0x1a in cpuidInfoAMD. Assuming new Ryzen",
    "NVRM: CPUID: unknown implementer/part 0xc0/0xac4.",
    "NVRM: Chipset not recognized (vendor ID 0x1d0f, device ID 0x0200)",
    "NVRM: GPU1 kbifCacheVFInfo_GB100: Unable to read NV_PF0_INITIAL_AND_TOTAL_VFS",
    "NVRM: kbifInitLtr_GB202: LTR is disabled in the hierarchy",
    "NVRM: _gpuFabricProbeRbmSleepLinks: Error setting links to sleep on linkmask 0x0",
    "NVRM: knvlinkSetUniqueFabricBaseAddress_GV100: Fabric base addr 1000000000 is assigned to GPU 3",
    "NVRM: GPU0 spdmRetryTeardown_GH100: CC secret cleanup successful!",
    "NVRM: memmgrBlackListPages_GM107: No blacklisted pages",
    "NVRM rmapiAllocWithSecInfo: RMAPI_GPU_LOCK_INTERNAL alloc requested without holding the RMAPI lock",
    "NVRM: GPU 0000:01:00.0: UnbindLock acquired",
    "NVRM: GPU 0000:01:00.0: UnbindLock released",
    *(
        f"NVRM: {gpu}{said}"
        for gpu in ("", "GPU0 ", "GPU 0000:01:00.0: ")
        for said in (
            "GPU serial number is 1.",
            "Failed to enable MSI; falling back to PCIe virtual-wire interrupts.",
        )
    ),
    *(
        f"NVRM: {gpu}gpuClearFbhubPoisonIntrForBug2924523_GA100: FBHUB Interrupt detected. Clearing it."
        for gpu in ("", "GPU0 ")
    ),
    "NVRM: builtin PAT support disabled.",
    "NVRM: PAT configuration unsupported.",
    "NVRM: Patch #1: x.patch",
    _SRAT.partition("\n")[0],
    f"{_SRAT}\nNVRM: Please consider upgrading the Hypervisor stack to the latest.",
    _CONSOLE.partition("\n")[0] + "\nNVRM: on the primary VGA device.",
    "NVRM: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
    "nvidia-nvswitch0: SXid (0000:05:00.0): 12028, Nonfatal, Link 32",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 26001, Correctable, Link 32",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine instance 48",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Data {0x00000001, 0x00000004}",
    *(
        f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {sxid}, Temperature 38C"
        for sxid in (10001, 10002, 10005, 22013, 26008, 28002, 28004)
    ),
    "nvidia 0000:01:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
    "nvidia 0000:01:00.0: device [10de:20b0] error status/mask=00000001/0000e000",
    f"{_AER}PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    f"{_AER}Corrected error received: 0000:01:00.0",
    f"{_AER}Correctable error message received from 0000:01:00.0",
    f"{_AER}Multiple Corrected error received: 0000:01:00.0",
    *(
        f"nvidia 0000:01:00.0: {detail}"
        for detail in (
            "   [12] Timeout",
            "   [ 6] Bad TLP",
            "   [13] NonFatalErr            (First)",
            "   [ 0] Receiver Error         (First)",
            "AER:    [12] Timeout",
            "  Error of this Agent is reported first",
            "  Error of this Agent(0100) is reported first",
        )
    ),
    "nvidia-gpu 0000:01:00.3: i2c timeout error e0000000",
    "nvidiafb: unknown NV_ARCH",
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
    "[drm:nv_drm_master_set [nvidia_drm]] *ERROR* [nvidia-drm] [GPU ID 0x00000100] Failed to grab modeset ownership",
    "[drm:drm_new_set_master [drm]] *ERROR* [nvidia-drm] [GPU ID 0x00000100] Failed to grab NVKMS modeset ownership",
    "nvidia 0000:01:00.0: [drm] No compatible format found",
    "nvidia 0000:00:06.0: PCI INT A: no GSI",
    "nvidia 0000:00:06.0: PCI INT A: not connected",
    "nvidia_uvm: module verification failed: signature and/or required key missing - tainting kernel",
    "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    "NVRM: Xid (0000:01:00): 154, GPU recovery action changed from Drain P2P to None",
)
#: Later lines of messages, which say nothing on their own.
REST = (
    "Please see 'Appendix A - Supported NVIDIA GPU Products'",
    "Please see the 'Open Linux Kernel Modules' and 'GSP",
    "in this release's README, available on the operating system",
    "specific graphics driver download page at www.nvidia.com.",
    "Firmware' sections in the driver README, available on",
    "the Linux graphics driver download page at",
    "www.nvidia.com.",
    "Software documentation, available at docs.nvidia.com",
    "To force use of Open nvidia.ko on other GPUs, see the",
    "'OpenRmEnableUnsupportedGpus' kernel module parameter described",
    "in the README.",
    "This can occur when another driver was loaded and",
    "obtained ownership of the NVIDIA device(s).",
    "Try unloading the conflicting kernel module (and/or",
    "reconfigure your kernel without the conflicting",
    "driver(s)), then try loading the NVIDIA kernel module",
    "again.",
    "occur when a driver such as rivatv is loaded and claims",
    "ownership of the device's registers.",
    "nouveau, rivafb, nvidiafb or rivatv",
    "Please check your BIOS settings.",
    "[Plug & Play OS] should be set to NO",
    "[Assign IRQ to VGA] should be set to YES",
    "nvidia-bug-report.sh as root to collect this data before",
    "the NVIDIA kernel module is unloaded.",
    "this kernel module has the version 580.1.  Please",
    "has the version 580.1.  Please",
    "kernel module and all NVIDIA driver",
    "make sure that this kernel module and all NVIDIA driver",
    "components have the same version.",
    "have the same version.",
    "BIOS or the Linux kernel failed to",
    "immediately upstream of the GPU",
    "a matching prefetchable memory window.",
    "to your NVIDIA device is not valid",
    "see the README section on 64-bit BARs",
    "This may be due to a known Linux kernel bug.  Please",
    "was loaded and obtained ownership of the NVIDIA device(s).",
    "information.",
    "the version 580.1.",
)


def test_each_fault_message_has_the_expected_cause_and_retry_and_build_flags() -> None:
    """Only a fault that is certainly permanent ends the retries."""
    for text, name, helps in FAULTS:
        messages = parse_messages(f"[    9.1] {text}\n")

        words = messages[0].words
        assert words is not None, text
        assert (text, words.severity, words.name) == (text, Severity.FAULT, name)
        assert words.is_refusal is (name == _NOT_SUPPORTED), text
        seen = (words.can_retry_help, words.can_rebuild_help)
        assert (text, seen) == (text, ("retry" in helps, "build" in helps))
        assert all(message.condemns_node for message in messages), text
        assert "?" not in messages[0].describe(), text


def test_driver_notice_is_not_taken_for_a_fault() -> None:
    texts = [*NOTICES, *(f"NVRM: {line}" for line in REST)]

    seen = {text: [*map(severity_of, parse_messages(f"[    9.1] {text}\n"))] for text in texts}
    assert seen == {text: [Severity.NOTICE] for text in texts}


#: The classes of Xids, by the immediate action in NVIDIA's catalogue.
XIDS = {
    (Severity.APPLICATION, ""): (
        8, 11, 13, 25, 31, 32, 39, 40, 41, 43, 45, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88,
        89, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 109, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135,
        139, 174,
    ),
    (Severity.NOTICE, ""): (
        14, 37, 38, 44, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 162, 163, 164,
    ),
    (Severity.FAULT, _LOST): (79,),
    (Severity.FAULT, "the GPU's memory has errors"): (48, 64, 94, 95, 140, 157, 161, 171, 172),
    (Severity.FAULT, _RESET): (
        46, 62, 63, 110, 119, 120, 136, 143, 154, 156, 158, 160, 167, 169, 173, 175,
    ),
    (Severity.FAULT, "the GPU has no power"): (54,),
    (Severity.FAULT, ""): (
        1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 26, 27, 28, 29, 30, 33, 34, 35, 36,
        42, 47, 49, 50, 51, 52, 53, 55, 56, 57, 58, 59, 61, 65, 73, 74, 78, 81, 87, 90, 91, 108, 111, 112, 113, 114,
        115, 116, 117, 118, 122, 123, 124, 125, 138, 142, 144, 145, 146, 147, 148, 149, 150, 151, 155, 159, 165,
        166, 168, 170,
    ),
}  # fmt: skip
_OF_CLASS = {xid: said for said, xids in XIDS.items() for xid in xids}


def test_each_xid_has_the_severity_and_name_of_the_nvidia_catalogue() -> None:
    for address in ("PCI:0000:01:00", "0000:01:00"):
        seen = {}
        for xid in range(180):
            (message,) = parse_messages(
                f"NVRM: Xid ({address}): {xid}, pid=1 to 0x1 (GPU Reset Required)"
            )
            if message.words is None:
                continue
            seen[xid] = (message.words.severity, message.words.name)
            helps = (message.words.can_rebuild_help, message.words.can_retry_help)
            assert (xid, helps) == (xid, (xid != 79, xid != 79))
            assert message.describe().startswith(f"Xid {xid}: ")

        assert seen == _OF_CLASS


def test_xid_45_is_a_gpu_error_if_the_xid_that_caused_it_is_a_gpu_error() -> None:
    """Xid 45 names the Xid before it, which an application may have caused."""
    condemning = set()
    for xid in range(180):
        said = f"45, pid=1, name=python3, Ch 00000001 caused by previous Xid {xid}"
        (message,) = parse_messages(f"NVRM: Xid (PCI:0000:01:00): {said}")
        assert message.words is not None
        if message.condemns_node:
            condemning.add(xid)

    faults = {xid for xid, (severity, _) in _OF_CLASS.items() if severity is Severity.FAULT}
    assert condemning ^ faults <= {154}


_SAID_BY_PROGRAMS = (
        *(
            (f"{insert}: {why}", "the driver's module is not signed")
            for insert in (
                "modprobe: ERROR: could not insert 'nvidia'",
                "modprobe: ERROR: could not insert 'nvidia_uvm'",
                "insmod: ERROR: could not insert module /lib/modules/x/nvidia.ko",
                "depmod: could not load module nvidia",
                "modprobe: ERROR: Error inserting nvidia (/lib/modules/x/nvidia.ko)",
                "Failed to insert module 'nvidia_modeset'",
                "insmod: can't insert '/lib/modules/x/nvidia.ko'",
                "modprobe: can't load module nvidia (kernel/drivers/video/nvidia.ko.xz)",
                "-> Kernel module load error",
            )
            for why in (
                "Key was rejected by service",
                "Required key not available",
                "Operation not permitted",
            )
        ),
        *(
            (f"{insert} 'nvidia': {why}", name)
            for insert in ("could not insert", "could not load module", "inserting", "insert module")
            for why, name in (
                ("Permission denied", "the driver's module is not allowed"),
                ("Exec format error", _OTHER_KERNEL),
                ("Invalid module format", _OTHER_KERNEL),
                ("Unknown symbol in module", _OTHER_KERNEL),
            )
        ),
        *(
            (f"ERROR: The kernel module failed to load. {why}, so this is\n       likely because it was not signed", "the driver's module is not signed")
            for why in ("Secure boot is enabled on this system", "CONFIG_MODULE_SIG_FORCE is set on the target kernel")
        ),
        ("ERROR: The Nouveau kernel driver is currently in use by your system.  This driver is\n       incompatible", "another driver is bound to the GPU"),
        ("ERROR: The kernel module failed to load, possibly because it was not signed", None),
        ("-> Kernel module load error: No such device", None),
        ("modprobe: ERROR: could not insert 'wireguard': Permission denied", None),
        ("modprobe: ERROR: could not insert 'nvidia': No such device", None),
        ("Loading of unsigned module is rejected", ""),
        ("Loading of module with unavailable key is rejected", ""),
        ("FATAL: Module nvidia-uvm not found in directory /lib/modules/6.1", "the driver's module is missing"),
        ("FATAL: Module wireguard not found in directory /lib/modules/6.1", None),
        ("Unable to determine the device handle for GPU0000:01:00.0: Unknown Error", _LOST),
        ("Unable to determine the device handle for GPU0000:01:00.0: Not Found", None),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "the driver's library is missing"),
        ("GPU is lost", _LOST),
        ("Unable to determine the device handle for GPU 0000:81:00.0: Unable to communicate with GPU because it is insufficiently powered.", "the GPU has no power"),
        ("Unable to determine the device handle for GPU3: 0000:5F:00.0: Unknown Error", _LOST),
        ("GPU requires reset", _RESET),
        ("Unable to determine the device handle for GPU0000:01:00.0: GPU requires reset", _RESET),
        ("GPU has fallen off the bus", _LOST),
        ("WARNING: infoROM is corrupted at gpu 0001:00:00.0", CORRUPT_INFOROM.name),
        ("Failed to initialize NVML: Driver/library version mismatch", MISMATCH.name),
        ("could not insert 'wireguard': Exec format error\nnvidia: Permission denied", None),
        ("Unable to determine the device handle for GPU\nUnknown Error", None),
        *((said, "") for said in ("No devices were found", "No devices found.", "Failed to initialize NVML: No supported GPUs were found")),
        ("", None),
)  # fmt: skip


def test_cause_is_found_for_each_known_error_in_the_output_of_a_tool() -> None:
    for said, name in _SAID_BY_PROGRAMS:
        words = find_tool_words(f"Thu Nov 26\n{said}\nend\n")

        assert (said, None if words is None else words.name) == (said, name)


def test_permanent_exit_codes_of_nvidia_smi_have_an_explanation() -> None:
    """A later retry may help after exit code 9 (no driver is loaded) or 6 (there is no GPU)."""
    assert SMI_EXIT_CODES == {
        8: NO_POWER,
        14: CORRUPT_INFOROM,
        15: LOST_GPU,
        16: RESET_REQUIRED,
        18: MISMATCH,
    }
    assert [words for words in SMI_EXIT_CODES.values() if words.can_retry_help] == []
    assert [words for words in SMI_EXIT_CODES.values() if words.can_rebuild_help] == [MISMATCH]


FIELDS = {
    f"NVRM: {_GPU}NVRM: installed in this system is not supported by the\nNVRM: NVIDIA 535.309.01 driver release.": {"address": "0000:0b:00.0", "device": "10de:2bb5", "version": "535.309.01"},
    f"NVRM: {_GPU}NVRM: installed in this system is not supported by the\nNVRM: NVIDIA 595.4 driver release.": {"address": "0000:0b:00.0", "device": "10de:2bb5", "version": "595.4"},
    "NVRM: The NVIDIA GPU 0000:0b:00 (PCI ID: 10de:2bb5) installed in this system is not supported by the": {"address": "0000:0b:00", "device": "10de:2bb5"},
    "NVRM: The NVIDIA GPU 10000:0B:00.0 (PCI ID: 10DE:2BB5) installed in this system is not supported by the": {"address": "10000:0B:00.0", "device": "10DE:2BB5"},
    "NVRM: The NVIDIA GeForce GTX 870M GPU installed in this system is supported through the NVIDIA 470.xx Legacy drivers. The 565.77 NVIDIA driver will ignore this GPU.": {"model": "GeForce GTX 870M", "branch": "470.xx", "version": "565.77"},
    "NVRM: The Quadro K600 GPU installed in this system is supported through the NVIDIA 470.xx Legacy drivers.": {"model": "Quadro K600", "branch": "470.xx"},
    f"{_INVALID_BAR}NVRM: BAR0 is 0M @ 0x0 (PCI:0000:05:00)": {"bar": "0", "size": "0M @ 0x0", "address": "0000:05:00"},
    "NVRM: GPU 0000:01:00.0 is already bound to nouveau.": {"address": "0000:01:00.0"},
    "NVRM: Attempting to remove device 0000:01:00 with non-zero usage count!": {"address": "0000:01:00"},
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build": {"version": "580.159.04"},
    "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)": {"action": "Drain and Reset"},
}  # fmt: skip


def test_gpu_address_and_driver_release_are_read_from_a_driver_message() -> None:
    seen = {log: [message.fields for message in parse_messages(f"{log}\n")] for log in FIELDS}

    assert seen == {log: [fields] for log, fields in FIELDS.items()}
