"""The table of the driver's words."""

from __future__ import annotations

import pytest

from harness.provisioning.driver_messages import find_tool_words, parse_messages
from harness.provisioning.driver_words import (
    CORRUPT_INFOROM,
    KERNEL_WORDS,
    LOST_GPU,
    MISMATCH,
    TOOL_WORDS,
    DriverWords,
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

#: Texts that no public log beside has, by what they say of the GPU.
SAMPLES = {
    Severity.FAULT: (
        f"NVRM: {_GPU}NVRM: installed in this system is not supported by the\nNVRM: NVIDIA 535.1 driver release.",
        f"NVRM: {_GPU}NVRM: installed in this vGPU host system is not supported by\nNVRM: open nvidia.ko.",
        f"NVRM: {_VGPU}NVRM: installed in this system is not supported by open\nNVRM: nvidia.ko.",
        "NVRM: Open nvidia.ko is only ready for use on Data Center GPUs.",
        "NVRM: ignoring the legacy GPU 0000:01:00.0",
        "NVRM: GPU is lost, skipping nvidia_ioctl",
        "NVRM: GPU0 nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)",
        "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED]",
        "NVRM: GPU0 krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7",
        "nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible",
        "nvidia 0000:01:00.0: Direct firmware load for nvidia/580.1/gsp_ga10x.bin failed with error -2",
        f"{_INVALID_BAR}NVRM: BAR0 is 0M @ 0x0 (PCI:0000:05:00.0)",
        f"{_INVALID_BAR}{_BAR1}nvidia: probe of 0000:05:00.0 failed with error -1",
        f"{_INVALID_BAR}{_BAR1}NVRM: The NVIDIA probe routine failed for 1 device(s).",
        "NVRM: This is a 64-bit BAR mapped above 4GB by the system",
        "NVRM: FATAL: Failed to re-allocate BAR1.",
        "NVRM: request_mem_region failed for 16M @ 0xe0000000. This can",
        "NVRM: pci_enable_device failed, aborting",
        "NVRM: Can't find an IRQ for your NVIDIA card!",
        "NVRM: None of the NVIDIA devices were initialized.",
        "NVRM: GPU 0000:01:00.0 is already bound to nouveau.",
        "NVRM: GPU 0000:01:00.0: GPU does not have the necessary power cables connected.",
        "NVRM: RmFetchGspRmImages: No firmware image found",
        "NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP",
        "NVRM: _kgspBootGspRm: (the GPU is likely in a bad state and may need to be reset)",
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:01:00 (printing 1 of every 30).",
        "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
        "NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7",
        "NVRM: Attempting to remove device 0000:01:00.0 with non-zero usage count!",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 26006, SOE HALTED",
        "nvidia: version magic '6.1.0-55 SMP mod_unload ' should be '6.1.0-56 SMP mod_unload '",
        "nvidia_uvm: disagrees about version of symbol nvUvmInterfaceDisableAccessCntr",
        "nvidia: Unknown symbol drm_dev_put (err -2)",
        "nvidia 0000:01:00.0: probe with driver nvidia failed with error -1",
        "nvidia: probe of 0000:0b:00.0 failed with error -1",
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
        "NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.",
        "NVRM: Xid (0000:01:00): 48, An Uncorrectable Double Bit Error (DBE) has been detected",
        "NVRM: Xid (PCI:0000:01:00): 63, pid=1, Row Remapper: New row marked for remapping, reset gpu to activate.",
        "NVRM: Xid (PCI:0000:01:00): 119, pid=1, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from None to Drain P2P",
        "NVRM: Xid (PCI:0000:01:00): 168, less memory",
        "NVRM: Xid (PCI:0000:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x00000086 0x00000001)",
        "NVRM: Xid (PCI:0000:01:00): 151, Key rotation error",
        "NVRM: Xid (PCI:0000:01:00): 54, Auxiliary power is not connected",
        "NVRM: Xid (PCI:0000:01:00): 78, vGPU start error",
        "NVRM: Xid (PCI:0000:01:00): 61, 0cec(3098) 00000000 00000000",
    ),
    Severity.APPLICATION: (
        *(f"NVRM: Xid (PCI:0000:01:00): {xid}, pid=77, name=python3" for xid in APPLICATION_XIDS),
        "NVRM: Xid (PCI:0000:01:00): 32, pid=77, Channel ID 00000008 intr0 00040000",
        "NVRM: Xid (PCI:0000:01:00): 71, pid=77, CE exception",
        "NVRM: Xid (PCI:0000:01:00): 82, pid=77, NVJPG exception",
        "NVRM: Xid (PCI:0000:01:00): 174, pid=77",
    ),
    Severity.NOTICE: (
        "NVRM: Xid (PCI:0000:01:00): 44, Ch 00000001",
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from Drain P2P to None",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@)",
        "NVRM: ignore invalid BAR failure for BAR2",
        "NVRM: Xid (PCI:0000:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 11 (0x00000006 0x00000008)",
        f"{_INVALID_BAR}NVRM: BAR2 is 0M @ 0x0 (PCI:0000:05:00.0)",
        "NVRM: No NVIDIA GPU found.",
        "NVRM: GPU Board Serial Number: 1",
        "NVRM: GPU 0000:a1:00.0: GPU serial number is 1.",
        "NVRM: Persistence mode is deprecated and will be removed in a future release.",
        "NVRM: gpuClearFbhubPoisonIntrForBug2924523_GA100: FBHUB Interrupt detected. Clearing it.",
        _TEMPORARY_PATH,
        "NVRM: CPU does not support the PAT.",
        "NVRM: Applied patches:",
        _SRAT,
        _CONSOLE,
        "NVRM: Failed to enable MSI; falling back to PCIe virtual-wire interrupts.",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 10005, Temperature is normal",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Nonfatal, Link 48 LTSSM Fault Up",
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "nvidia 0000:01:00.0: [drm] Cannot find any crtc or sizes",
        "nvidia-modeset: WARNING: GPU:0: Unable to read EDID for display device DP-0",
        "nvidia 0000:00:06.0: can't derive routing for PCI INT A",
        "nvidia 0000:01:00.0:   device [10de:20b0] error status/mask=00000001/0000e000",
    ),
}
TOOL_SAMPLES = {
    "WARNING: infoROM is corrupted at gpu 0001:00:00.0": CORRUPT_INFOROM,
    "Unable to determine the device handle for GPU0000:A1:00.0: Unknown Error": LOST_GPU,
    "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system": LOST_GPU,
    "Failed to initialize NVML: Driver/library version mismatch": MISMATCH,
}


@pytest.mark.parametrize("words", TABLE, ids=lambda words: words.pattern.pattern[:60])
def test_each_row_says_what_it_means_and_what_to_do(words: DriverWords) -> None:
    assert words.source
    assert words.meaning.endswith(".")
    assert bool(words.remedy) is words.condemns_node
    assert words.condemns_node or (words.can_retry_help and words.can_rebuild_help)
    assert not words.is_refusal or not words.can_rebuild_help
    assert not words.can_retry_help or words.can_rebuild_help


@pytest.mark.parametrize(
    ("text", "severity"),
    [(text, severity) for severity, texts in SAMPLES.items() for text in texts],
)
def test_text_is_known(text: str, severity: Severity) -> None:
    (message,) = parse_messages(f"[    9.1] {text}\n")

    assert message.words is not None
    assert message.words.severity is severity
    assert "?" not in message.describe()


def test_no_row_is_without_a_text() -> None:
    texts = [text for texts in SAMPLES.values() for text in texts]
    messages = parse_messages("\n".join([*texts, *(each.text for each in PUBLIC_LOGS)]))
    used = {message.words.pattern for message in messages if message.words is not None}

    unused = [words.pattern.pattern for words in KERNEL_WORDS if words.pattern not in used]
    assert unused == []


@pytest.mark.parametrize(
    "sxid",
    [
        *(10003, 10004, 10006, 10007, 10008, 20034, 22003, 22011),
        *range(26001, 26008),
        *range(27001, 27008),
        *(28001, 28003, 28005),
    ],
)
def test_fatal_error_of_a_switch_is_known_without_its_severity(sxid: int) -> None:
    (message,) = parse_messages(f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {sxid}, Link 48\n")

    assert message.condemns_node
    assert message.describe().startswith(f"SXid {sxid}: An NVSwitch has a fatal error.")


@pytest.mark.parametrize("xid", range(1, 162))
def test_xid_of_the_catalogue_has_one_meaning(xid: int) -> None:
    text = f"Xid (PCI:0000:01:00): {xid}, pid=1 to 0x1 (GPU Reset Required)"

    rows = [words for words in KERNEL_WORDS if words.pattern.match(text)]

    assert [row.severity for row in rows] == [rows[0].severity]
    assert (rows[0].severity is Severity.APPLICATION) or xid not in APPLICATION_XIDS


@pytest.mark.parametrize(
    ("said", "is_fault"),
    [
        ("144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008 0x00000000)", False),
        ("144, SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000002 0x00000000)", True),
        ("145, RLW_CTRL Nonfatal XC0 i0 Link 00 (0x00000003 0x80000000 0x00000000)", False),
        ("145, RLW_REMAP Fatal   XC1 i0 Link 10 (0x00000082 0x00000040 0x00000000)", True),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)", False),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a4c2 0x00000001 0x00000001)", True),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409acc2 0x00000001 0x00000001)", True),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x00000006 0x00000001 0x00000001)", False),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x00000086 0x00000001 0x00000001)", True),
        ("145, RLW_RXPIPE Fatal XC0 i0 Link 13 (0x00000006 0x00000001 0x00000001)", True),
        ("146, TLW_CTRL Nonfatal XC0 i0 Link 02 (0x00000009 0x00000001 0x00000000)", False),
        ("147, TREX Nonfatal XC0 i0 Link 02 (0x0000000e 0x80000000 0x00000000)", False),
        ("148, NVLPW_CTRL Nonfatal XC0 i0 Link 02 (0x0000000f 0x80000000 0x00000000)", False),
        ("149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 02 (0x00000013 0x00000001)", False),
        ("149, NETIR_BER_EVENT  Nonfatal  XC0 i0 Link -1 (0x00000013 0x00000001)", False),
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)", True),
        ("149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]", True),
        ("150, MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x00000000 0x00000000)", True),
        ("150, MSE_WATCHDOG Nonfatal XC0 i0 Link -1 (0x00000000 0x00000000)", True),
        ("149, words that nobody knows", True),
    ],
)
def test_error_of_an_nvlink_that_is_not_fatal_condemns_no_node(
    said: str, *, is_fault: bool
) -> None:
    """As NVIDIA's catalogue of Xids 144 to 150 decodes them; the receiver's pipe has errors made fatal."""
    (message,) = parse_messages(f"[ 9.1] NVRM: Xid (PCI:0018:01:00): {said}\n")

    assert message.words is not None
    assert message.condemns_node is is_fault
    assert message.words.severity is (Severity.FAULT if is_fault else Severity.NOTICE)


@pytest.mark.parametrize("xid", [0, 177, 200, 1300, 790])
def test_xid_that_nobody_knows_is_unknown(xid: int) -> None:
    (message,) = parse_messages(f"[1.1] NVRM: Xid (PCI:0000:01:00): {xid}, pid=1\n")

    assert message.words is None
    assert message.describe().startswith("The driver said '[1.1] NVRM: Xid (PCI:0000:01:00): ")


@pytest.mark.parametrize(("output", "words"), TOOL_SAMPLES.items())
def test_words_of_a_program_are_known(output: str, words: DriverWords) -> None:
    assert find_tool_words(f"Fri Nov 27\n{output}\n") is words


@pytest.mark.parametrize(
    "output",
    [
        "",
        "No devices were found\n",
        "Unable to determine the device handle for GPU 0000:D8:00.0: Not Found\n",
        "some words that nobody knows\n",
    ],
)
def test_other_words_of_a_program_have_no_meaning(output: str) -> None:
    assert find_tool_words(output) is None


@pytest.mark.parametrize(
    ("source", "output", "may_retry", "may_build"),
    [
        ("NVIDIA/gpu-driver-container#44", "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", False, False),
        ("NVIDIA/gpu-operator#1726", "[ 9.1] Loading of unsigned module is rejected", False, False),
        ("NVIDIA/gpu-operator#553", "modprobe: ERROR: could not insert 'nvidia': Permission denied", False, False),
        ("BugRoger/coreos-nvidia-driver#4", "insmod: ERROR: could not insert module /opt/x/video/nvidia/nvidia.ko: Unknown symbol in module", False, True),
        ("a module of another kernel", "modprobe: ERROR: could not insert 'nvidia_uvm': Exec format error", False, True),
        ("a kernel without the module", "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.1.0-56", False, True),
        ("Azure/AKS#5860", "Failed to initialize NVML: Driver/library version mismatch", False, True),
    ],
)  # fmt: skip
def test_module_that_is_not_loaded_says_what_may_help(
    source: str, output: str, *, may_retry: bool, may_build: bool
) -> None:
    words = find_tool_words(output)

    assert words is not None, source
    assert (words.can_retry_help, words.can_rebuild_help) == (may_retry, may_build)
