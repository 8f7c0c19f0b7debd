"""The health of GPUs in the report of `nvidia-smi -q`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from harness.errors import ExpectationError, HarnessError
from harness.expect.driver_report import NVIDIA_SMI, driver_reports_health
from suites.unit.evidence.folders import EvidenceFolder, a_serving_node

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.evidence import Evidence

HEAD = """
==============NVSMI LOG=======


Timestamp                                 : Mon Nov 23 01:30:02 2026
Driver Version                            : 580.126.09
CUDA Version                              : 13.0

Attached GPUs                             : 2
"""
GPU = """
GPU {address}
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU Reset Status
        Reset Required                    : No
        Drain and Reset Recommended       : No
    GPU Recovery Action                   : None
    PCI
        Bus                               : 0x65
    FB Memory Usage
        Total                             : 81559 MiB
        Pending                           : Yes
    ECC Errors
        Volatile
            SRAM Correctable              : 7
            SRAM Uncorrectable Parity     : 0
            DRAM Uncorrectable            : 0
        Aggregate
            DRAM Uncorrectable            : 3
            SRAM Threshold Exceeded       : No
        Aggregate Uncorrectable SRAM Sources
            SRAM L2                       : 2
        Channel Repair Pending            : No
        TPC Repair Pending                : No
        Unrepairable Memory               : No
    Retired Pages
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 1
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
    Processes                             : None
"""
FIRST, SECOND = (GPU.format(address=f"00000000:{bus}:00.0") for bus in ("65", "66"))
FABRIC = """    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 1
        Health
            Summary                       : Healthy
            Bandwidth                     : Full
            Route Recovery in progress    : False
            Route Unhealthy               : False
            Access Timeout Recovery       : False
            Incorrect Configuration       : None
            Partition Assigned            : True
"""
WITH_FABRIC = SECOND + FABRIC
BUS = "".join(
    f"{bus}:00.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2330] (rev a1)\n"
    "\tKernel driver in use: nvidia\n"
    for bus in ("65", "66")
)
ONE = HEAD.replace(": 2", ": 1")
ONE_ON_BUS = BUS.partition("66:00.0")[0]


def a_node(folder: Path, report: str, *, exit_code: int = 0, bus: str = BUS) -> EvidenceFolder:
    made = EvidenceFolder(folder).command("lspci", bus)
    return made.command(NVIDIA_SMI, report, exit_code)


def evidence_of(folder: Path, gpus: Sequence[str]) -> Evidence:
    """Return the evidence of a node with these GPUs, on PCI bus 66 and the buses after it."""
    buses = [f"{0x66 + number:x}" for number in range(len(gpus))]
    blocks = [gpu.replace(":66:", f":{bus}:") for bus, gpu in zip(buses, gpus, strict=True)]
    on_bus = [ONE_ON_BUS.replace("65:", f"{bus}:") for bus in buses]
    report = HEAD.replace(": 2", f": {len(gpus)}") + "".join(blocks)
    return a_node(folder, report, bus="".join(on_bus)).evidence


def changed(gpu: str, old: str, new: str) -> str:
    assert gpu.count(old) == 1
    return gpu.replace(old, new)


def said_of_each(
    folder: Path, gpus: Sequence[str], kind: type[Exception] = ExpectationError
) -> list[str]:
    """Judge a healthy GPU and these GPUs; return the faults in the error, for each GPU."""
    with pytest.raises(kind) as caught:
        driver_reports_health(evidence_of(folder, [SECOND, *gpus]))

    said = re.findall(
        r"GPU 00000000:(\w\w):00\.0: (.*?)(?=; GPU 0|\.?$|\. The evidence)", str(caught.value)
    )
    assert [bus for bus, _ in said] == [f"{0x67 + number:x}" for number in range(len(gpus))]
    return [what for _, what in said]


def test_healthy_gpus_are_counted_with_or_without_a_fabric(tmp_path: Path) -> None:
    """Corrected errors and errors before the last driver load are not a present fault."""
    no_fabric = re.sub(r": \w+\n", ": N/A\n", FABRIC)
    # The fields of a fabric mean nothing in another block.
    other = FABRIC.replace("Fabric", "Port").replace("Completed", "In Progress")
    for second in (SECOND, WITH_FABRIC, SECOND + no_fabric, SECOND + other):
        evidence = a_node(tmp_path, HEAD + FIRST + second).evidence

        assert driver_reports_health(evidence) == "nvidia-smi reports 2 GPUs without a fault."


def test_report_without_a_gpu_is_a_fault(tmp_path: Path) -> None:
    """No GPU is bound to the driver, so the report and the bus agree."""
    report = HEAD.replace(": 2", ": 0")
    bus = BUS.replace("\tKernel driver in use: nvidia\n", "")

    with pytest.raises(ExpectationError, match="but reports none"):
        driver_reports_health(a_node(tmp_path, report, bus=bus).evidence)


def test_virtual_functions_are_not_expected_in_the_report(tmp_path: Path) -> None:
    folder = a_node(tmp_path, ONE + FIRST)

    with pytest.raises(ExpectationError, match="bound to 2 GPUs"):
        driver_reports_health(folder.evidence)
    folder.paths("l 777 0 1.0 /sys/bus/pci/devices/0000:66:00.0/physfn")
    assert driver_reports_health(folder.evidence).endswith(" 1 GPU without a fault.")


NOT_REGISTERED, DEGRADED = "not registered with the fabric", "is degraded"
FAULTS = [
    ("Pending                           : No", "Pending                           : Yes", "wait to be remapped"),
    ("Occurred        : No", "Occurred        : Yes", "could not be remapped"),
    ("Blacklist            : N/A", "Blacklist            : Yes", "wait to be retired"),
    ("Required                    : No", "Required                    : Yes", "has to be reset"),
    ("Recommended       : No", "Recommended       : Yes", "drained and reset"),
    ("DRAM Uncorrectable            : 0", "DRAM Uncorrectable            : 2", "2 errors of its memory"),
    ("Parity     : 0", "Parity     : 1", "1 errors of its memory"),
    ("Exceeded       : No", "Exceeded       : Yes", "caches have had too many errors"),
    ("Channel Repair Pending            : No", "Channel Repair Pending            : Yes", "channel of its memory"),
    ("TPC Repair Pending                : No", "TPC Repair Pending                : Yes", "processor cluster"),
    ("Unrepairable Memory               : No", "Unrepairable Memory               : Yes", "cannot be repaired"),
    ("Action                   : None", "Action                   : Reset", "advises to reset the GPU"),
    ("Action                   : None", "Action                   : GPU_RESET", "advises to reset the GPU"),
    ("Action                   : None", "Action                   : Node Reboot", "reboot the node"),
    ("Action                   : None", "Action                   : System Reboot", "reboot the node"),
    ("Action                   : None", "Action                   : BUS_RESET", "reset the GPU's PCIe bus"),
    ("Action                   : None", "Action                   : Drain P2P", "with other GPUs"),
    ("Action                   : None", "Action                   : Reboot", "reboot the node"),
    ("Action                   : None", "Action                   : NODE_REBOOT", "reboot the node"),
    ("Action                   : None", "Action                   : DRAIN_P2P", "with other GPUs"),
    ("Action                   : None", "Action                   : GPU Reset", "advises to reset the GPU"),
    ("Action                   : None", "Action                   : Recover IMEX Domain", "recover the IMEX domain"),
    ("Action                   : None", "Action                   : RECOVER_IMEX_DOMAIN", "recover the IMEX domain"),
    ("Pending Page Blacklist            : N/A", "Pending                           : Yes", "wait to be retired"),
    (": 81559 MiB", ": Unknown Error", "does not answer"),
    (": 81559 MiB", ": GPU requires reset", "'GPU requires reset': reset the GPU"),
    ("Action                   : None", "Action                   : Drain and Reset", "drain and reset it"),
    (": 81559 MiB", ": [GPU is lost]", "does not answer. Reboot the node"),
    (": NVIDIA H100 80GB HBM3", ": ERR!", "does not answer"),
    ("DRAM Uncorrectable            : 0", "DRAM Uncorrectable            : 10", "10 errors of its memory"),
    ("Required                    : No", "Required                    : Unknown Error", "does not answer"),
    ("Parity     : 0", "Parity     : [Unknown Error]", "does not answer"),
    ("DRAM Uncorrectable            : 0", "Uncorrectable\n                DRAM : 4", "4 errors of its memory"),
    ("Completed", "In Progress", NOT_REGISTERED),
    ("Completed", "Not Started", NOT_REGISTERED),
    ("Success", "Unknown Error", NOT_REGISTERED),
    (": Healthy", ": Unhealthy", DEGRADED),
    (": Healthy", ": Limited Capacity", DEGRADED),
    (": Full", ": Degraded", DEGRADED),
    ("Route Unhealthy               : False", "Route Unhealthy               : True", DEGRADED),
    ("progress    : False", "progress    : True", DEGRADED),
    ("Recovery       : False", "Recovery       : True", DEGRADED),
]  # fmt: skip


def test_each_known_fault_is_reported_for_its_own_gpu(tmp_path: Path) -> None:
    """Until a GPU is registered with its fabric, CUDA fails with 'system not yet initialized' (802)."""
    gpus = [changed(WITH_FABRIC, healthy, broken) for healthy, broken, _ in FAULTS]

    for said, (_, broken, words) in zip(said_of_each(tmp_path, gpus), FAULTS, strict=True):
        assert words in said, broken


#: The reports of release 580 for a Volta GPU, which counts single-bit and double-bit errors, and
#: for a GPU without ECC.
COUNTS = "".join(f"                {unit:<26}: 0\n" for unit in ("Device Memory", "CBU", "Total"))
VOLTA = f"""
GPU 00000000:65:00.0
    GPU Reset Status
        Reset Required                    : Requested functionality has been deprecated
    GPU Recovery Action                   : None
    ECC Errors
        Volatile
            Single Bit
{COUNTS}            Double Bit
{COUNTS}        Aggregate
            Single Bit
{COUNTS}            Double Bit
{COUNTS}    Retired Pages
        Single Bit ECC                    : 0
        Double Bit ECC                    : 2
        Pending Page Blacklist            : No
    Remapped Rows                         : N/A
"""


def with_count(report: str, nth: int) -> str:
    """Return the report with 3 as its nth error count of device memory, in place of 0."""
    parts = report.split("Device Memory             : 0")
    return (
        "Device Memory             : 0".join(parts[:nth])
        + "Device Memory             : 3"
        + ("Device Memory             : 0".join(parts[nth:]))
    )


def test_only_double_bit_errors_since_the_driver_was_loaded_are_a_fault(tmp_path: Path) -> None:
    """Single-bit errors are corrected; earlier double-bit errors are not a present fault."""
    for nth in (1, 3, 4):
        evidence = a_node(tmp_path, ONE + with_count(VOLTA, nth), bus=ONE_ON_BUS).evidence
        assert driver_reports_health(evidence) == "nvidia-smi reports 1 GPU without a fault."

    evidence = a_node(tmp_path, ONE + with_count(VOLTA, 2), bus=ONE_ON_BUS).evidence
    with pytest.raises(ExpectationError, match="3 errors of its memory were not corrected"):
        driver_reports_health(evidence)


UNKNOWN = [
    ("Pending                           : No", "Pending                           : Perhaps"),
    ("Occurred        : No", "Occurred        : In progress"),
    ("Exceeded       : No", "Exceeded       : 17"),
    ("Action                   : None", "Action                   : Replace"),
    ("Action                   : None", "Action                   : "),
    ("Action                   : None", "Action                   :"),
    ("Parity     : 0", "Parity     : many"),
    (": Completed", ": Perhaps"),
    (": Success", ": Perhaps"),
    (": Healthy", ": Perhaps"),
    (": Full", ": Perhaps"),
    ("Configuration       : None", "Configuration       : Perhaps"),
    ("Assigned            : True", "Assigned            : Perhaps"),
]


def test_unknown_values_in_the_report_make_the_health_unknown(tmp_path: Path) -> None:
    gpus = [changed(WITH_FABRIC, known, odd) for known, odd in UNKNOWN]

    for said, (_, odd) in zip(said_of_each(tmp_path, gpus, HarnessError), UNKNOWN, strict=True):
        assert said.startswith(f"'{odd.partition(': ')[2]}' for '")


def test_unknown_line_about_the_health_of_the_fabric_makes_the_health_unknown(
    tmp_path: Path,
) -> None:
    gpu = changed(WITH_FABRIC, "Bandwidth     ", "Lanes         ")

    (said,) = said_of_each(tmp_path, [gpu], HarnessError)

    assert said.startswith("'Full' for 'Fabric / Health / Lanes'")


def test_power_draw_that_could_not_be_read_is_a_fault_only_without_a_power_limit(
    tmp_path: Path,
) -> None:
    """Azure/azhpc-diagnostics#77: a sound GPU's power draw is unreadable for a while."""
    gpu = f"{SECOND}    GPU Power Readings\n        Average Power Draw : [Unknown Error]\n"

    for draw in ("Instantaneous Power Draw : Unknown Error", "Power Draw : ERR!"):
        report = [SECOND, f"{gpu}        {draw}\n        Current Power Limit : 700.00 W\n"]
        assert driver_reports_health(evidence_of(tmp_path, report)).endswith(
            " 2 GPUs without a fault."
        )
    for rest in ("Current Power Limit : Unknown Error", "Power Draw : GPU is lost"):
        (said,) = said_of_each(tmp_path, [f"{gpu}        {rest}\n"])
        assert "does not answer" in said


def test_virtual_gpu_without_a_licence_is_a_fault(tmp_path: Path) -> None:
    """States from Azure/AKS#4870, NVIDIA/gpu-operator#220 and #628, and AgentBaker's tests."""
    virtual = """    GPU Virtualization Mode
        Virtualization Mode               : VGPU
    vGPU Software Licensed Product
        Product Name                      : NVIDIA RTX Virtual Workstation
        License Status                    : {}
"""
    healthy = ("Licensed (Expiry: 2025-3-19 7:29:4 GMT)", "Unlicensed (Unrestricted)", "N/A")
    gpus = [SECOND + virtual.format(state) for state in healthy]
    gpus.append(SECOND + virtual.format("Unlicensed").replace("VGPU", "Pass-Through"))
    assert driver_reports_health(evidence_of(tmp_path, gpus))

    for state in ("Unlicensed (Restricted)", "Unlicensed"):
        (said,) = said_of_each(tmp_path, [SECOND + virtual.format(state)])
        assert "no licence" in said, state
    (said,) = said_of_each(tmp_path, [SECOND + virtual.format("Lent")], HarnessError)
    assert "Lent" in said


def test_process_name_that_looks_like_a_fault_is_ignored(tmp_path: Path) -> None:
    names = ("GPU is lost", "GPU requires reset", "./ERR!", "Unknown Error")
    processes = "".join(f"        Process ID : 9\n            Name : {name}\n" for name in names)
    second = re.sub(r"Processes +: None\n", f"Processes\n{processes}", SECOND)

    assert driver_reports_health(evidence_of(tmp_path, [SECOND, second])).endswith(
        " 2 GPUs without a fault."
    )


def test_gpu_report_with_only_a_healthy_fabric_raises_a_harness_error(tmp_path: Path) -> None:
    report = ONE + "GPU 00000000:65:00.0\n" + FABRIC

    with pytest.raises(HarnessError, match="no line about faults that the harness knows"):
        driver_reports_health(a_node(tmp_path, report, bus=ONE_ON_BUS).evidence)


def test_corrupted_inforom_is_a_fault_even_beside_other_faults_or_unknown_values(
    tmp_path: Path,
) -> None:
    warning = "WARNING: infoROM is corrupted at gpu 00000000:66:00.0\n"
    for second, words in (
        (SECOND.replace("Exceeded       : No", "Exceeded       : Perhaps"), "but "),
        (SECOND.replace("Parity     : 0", "Parity     : 2"), "2 errors of its memory .*; "),
    ):
        with pytest.raises(ExpectationError, match=f"{words}.*infoROM is corrupted; the machine"):
            driver_reports_health(a_node(tmp_path, HEAD + FIRST + second + warning).evidence)


NO_HANDLE = "Unable to determine the device handle for GPU"


def test_unreachable_gpu_is_a_fault_even_if_nvidia_smi_exits_with_0(
    tmp_path: Path,
) -> None:
    """The report continues with the remaining GPUs."""
    for warning, words in (
        (f"{NO_HANDLE}1: 0000:66:00.0: Unknown Error", "fallen off the bus"),
        (f"{NO_HANDLE}0000:66:00.0: GPU requires reset", "until it is reset"),
        ("No devices were found", "no GPU that works"),
    ):
        with pytest.raises(ExpectationError, match=words):
            driver_reports_health(a_node(tmp_path, f"{warning}\n{HEAD}{FIRST}").evidence)


def test_no_devices_warning_is_a_fault_even_if_the_report_has_each_gpu_on_the_bus(
    tmp_path: Path,
) -> None:
    report = f"No devices were found\n{ONE}{FIRST}"

    with pytest.raises(ExpectationError, match=r"reports 1: 00000000:65:00\.0"):
        driver_reports_health(a_node(tmp_path, report).evidence)
    with pytest.raises(ExpectationError, match="but The driver has no GPU that works"):
        driver_reports_health(a_node(tmp_path, report, bus=ONE_ON_BUS).evidence)


def test_failure_of_nvidia_smi_is_explained_by_its_message_or_exit_code(tmp_path: Path) -> None:
    for said, code, words in (
        ("words that nobody knows", 77, "Look for 'NVRM'"),
        ("words that nobody knows", 15, "has fallen off the bus"),
        ("words that nobody knows", 14, "infoROM is corrupted"),
        ("words that nobody knows", 18, "different versions"),
        ("infoROM is corrupted", 18, "infoROM is corrupted"),
        ("GPU is lost", 124, "has fallen off the bus"),
        ("No devices were found", 6, "The driver has no GPU that works. Look for 'NVRM'"),
    ):
        with pytest.raises(
            ExpectationError, match=rf"exited with {code} and printed: {said}\. .*{words}"
        ):
            driver_reports_health(a_node(tmp_path, said, exit_code=code).evidence)


def test_health_is_unknown_if_nvidia_smi_did_not_end_or_start(tmp_path: Path) -> None:
    for code in (124, 126, 137, 143):
        node = a_node(tmp_path, HEAD + FIRST, exit_code=code)
        with pytest.raises(HarnessError, match=f"in time: it exited with {code} and printed:"):
            driver_reports_health(node.evidence)


def test_gpu_that_is_not_bound_to_nvidias_driver_need_not_be_in_the_report(tmp_path: Path) -> None:
    other, unbound = (ONE_ON_BUS.replace("65:", f"{bus}:") for bus in ("77", "78"))
    bus = BUS + other.replace("use: nvidia", "use: vfio-pci") + unbound.partition("\t")[0]

    assert driver_reports_health(a_node(tmp_path, HEAD + FIRST + SECOND, bus=bus).evidence)


def test_fault_field_in_an_unrelated_report_block_is_ignored(tmp_path: Path) -> None:
    for block in (
        "    Row Remapper\n        Volatile\n            Uncorrectable : 3\n",
        "    Remapped Rows\n        Histogram\n            Pending : Yes\n",
    ):
        assert driver_reports_health(a_node(tmp_path, HEAD + FIRST + SECOND + block).evidence)


def test_missing_nvidia_smi_is_a_fault_unless_a_driver_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ExpectationError, match=r"no such program\. Install"):
        driver_reports_health(a_node(tmp_path / "none", "", exit_code=127).evidence)

    node = a_serving_node(tmp_path / "loaded").command(NVIDIA_SMI, "", 127)
    with pytest.raises(
        HarnessError, match="is loaded, so the program `nvidia-smi` must be somewhere"
    ):
        driver_reports_health(node.evidence)


def test_health_is_unknown_if_the_report_does_not_have_a_block_for_each_counted_gpu(
    tmp_path: Path,
) -> None:
    for report in (
        "",
        HEAD,
        HEAD.replace("Attached", "Other") + FIRST + SECOND,
        ONE + FIRST + SECOND,
        HEAD.replace(": 2", ": 3") + FIRST + SECOND,
    ):
        with pytest.raises(HarnessError, match="'Attached GPUs' and a block for each"):
            driver_reports_health(a_node(tmp_path, report).evidence)


def test_health_is_unknown_if_the_report_was_not_gathered(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no output of"):
        driver_reports_health(EvidenceFolder(tmp_path).command("lspci", BUS).evidence)


def test_all_faults_of_a_gpu_are_reported_with_its_full_pci_address(tmp_path: Path) -> None:
    """Large machines have GPUs in several PCI domains."""
    report = ONE + GPU.format(address="0001FFFF:B1:00.0").replace(
        "Required                    : No", "Required                    : Yes"
    ).replace("Parity     : 0", "Parity     : 2")

    with pytest.raises(
        ExpectationError,
        match=r"but GPU 0001FFFF:B1:00\.0: it has to be reset.*; GPU 0001FFFF:B1:00\.0: 2 errors",
    ):
        driver_reports_health(a_node(tmp_path, report, bus=ONE_ON_BUS).evidence)


def test_fault_is_reported_even_if_another_value_is_unknown(tmp_path: Path) -> None:
    first = FIRST.replace("Exceeded       : No", "Exceeded       : Yes")
    second = SECOND.replace("Exceeded       : No", "Exceeded       : Perhaps")
    with pytest.raises(ExpectationError, match=r"GPU 00000000:65:00\.0: its caches"):
        driver_reports_health(a_node(tmp_path, HEAD + first + second).evidence)

    both = FIRST.replace("Exceeded       : No", "Exceeded       : Perhaps").replace(
        "Parity     : 0", "Parity     : 2"
    )
    with pytest.raises(ExpectationError, match="2 errors of its memory"):
        driver_reports_health(a_node(tmp_path, HEAD + both + SECOND).evidence)


def test_health_is_unknown_if_one_of_two_gpus_has_no_known_field(tmp_path: Path) -> None:
    second = "GPU 00000000:66:00.0\n    Health of the memory : perfect\n"

    with pytest.raises(HarnessError, match=r"GPU 00000000:66:00\.0: no line about faults"):
        driver_reports_health(a_node(tmp_path, HEAD + FIRST + second).evidence)


def test_missing_values_in_the_report_do_not_hide_another_fault(tmp_path: Path) -> None:
    gpus = [
        changed(SECOND, healthy, f"{healthy.rpartition(' ')[0]} {value}")
        for healthy in ("Exceeded       : No", "Parity     : 0")
        for value in ("N/A", "[N/A]", "Not Supported", "None")
    ]
    assert driver_reports_health(evidence_of(tmp_path, gpus)).endswith(" 8 GPUs without a fault.")

    zero = "DRAM Uncorrectable            : 0"
    faulty = [changed(gpu, zero, zero.replace("0", "3")) for gpu in gpus]
    for said in said_of_each(tmp_path, faulty):
        assert said.startswith("3 errors of its memory")


def test_fields_after_a_nested_report_block_are_still_read(tmp_path: Path) -> None:
    """Later releases have a histogram inside the block of remapped rows."""
    histogram = "        Bank Remap Availability Histogram\n            Max : 5 bank(s)\n"
    old = "        Pending                           : No\n"
    sound = SECOND.replace(old, f"{histogram}{old}")
    assert driver_reports_health(a_node(tmp_path / "sound", HEAD + FIRST + sound).evidence)

    faulty = SECOND.replace(old, f"{histogram}{old.replace('No', 'Yes')}")
    with pytest.raises(ExpectationError, match="rows of its memory wait to be remapped"):
        driver_reports_health(a_node(tmp_path / "faulty", HEAD + FIRST + faulty).evidence)


def test_long_blank_text_in_the_report_does_not_delay_the_verdict(tmp_path: Path) -> None:
    """A user chooses the names of processes."""
    report = HEAD + FIRST + SECOND + f"    Processes\n        Name{' ' * 20_000}x : a\n"

    assert driver_reports_health(a_node(tmp_path, report).evidence)


def test_report_of_more_gpus_than_the_driver_is_bound_to_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ExpectationError,
        match=r"bound to 1 GPUs, but `nvidia-smi -q` reports 2: 00000000:65:00\.0, 00000000:66:00\.0\.",
    ):
        driver_reports_health(a_node(tmp_path, HEAD + FIRST + SECOND, bus=ONE_ON_BUS).evidence)


def test_missing_gpu_is_reported_before_faults_of_other_gpus(tmp_path: Path) -> None:
    report = ONE + FIRST.replace("Exceeded       : No", "Exceeded       : Perhaps")

    with pytest.raises(ExpectationError, match="bound to 2 GPUs, but"):
        driver_reports_health(a_node(tmp_path, report).evidence)
