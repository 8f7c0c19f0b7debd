"""The GSP's answers about the GPU to the driver; nvidia-smi shows these answers."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.fixtures.recordings import load_recording
from harness.gpu.catalogue import find_model
from harness.gpu.emulated import EmulatedGpu
from harness.gpu.gsp.answers import ANSWERS
from harness.gpu.gsp.device import GspDevice
from harness.gpu.gsp.guest_memory import MOST_BYTES
from harness.gpu.gsp.layouts import known_releases, read_layouts
from harness.gpu.gsp.making import make_engine
from harness.gpu.gsp.rpc import Function
from harness.gpu.gsp.sensors import REFUSED
from harness.gpu.trace import IncidentKind
from harness.settings import GpuEmulation
from suites.unit.gpu.gsp.drivers import A100, H100, T4, Driver, a_device

if TYPE_CHECKING:
    from pathlib import Path

NOT_SUPPORTED = 0x56
GPU_INFO, BUS_INFO, BOARD, CHIP, IMAGE, HISTOGRAM = (
    0x20800102,
    0x20801823,
    0x2080013F,
    0x208001A4,
    0x20800156,
    0x20801347,
)
SAMPLES, FEATURES, SET_MIG_MODE = 0x20802096, 0x20803601, 0x20800AA3
SENSORS, MARGIN, TEMPERATURE_LIMIT, OPERATING = 0x20808513, 0x2080852B, 0x20808546, 0x2080852C
POWER, POLICIES, TEMPERATURE_POLICIES = 0x2080A613, 0x2080A618, 0x2080852A
CHIP_INFO, BARS, TRANSFER, ENGINES = 0x20800A36, 0x20801803, 0x20800AFA, 0x20801112


def opened(model: str = A100, *, number: int = 1) -> Driver:
    driver = Driver(a_device(model, number))
    driver.open()
    return driver


def real_h100(element: str) -> str:
    """Return the text of an element in a recorded report of nvidia-smi on a real H100."""
    text = load_recording("nvidia-smi/580.159.04-h100-q-x").text
    found = re.search(rf"<{element}>(.*)</{element}>", text)
    assert found is not None, element
    return found[1]


def words(answer: bytes, *offsets: int) -> list[int]:
    return [struct.unpack_from("<I", answer, offset)[0] for offset in offsets]


def test_gpus_of_a_machine_have_different_handles() -> None:
    """The driver caches answers by handle: equal handles gave both GPUs the same ids."""
    first, second = opened(A100, number=1).static_info(), opened(H100, number=2).static_info()

    for handle in ("hInternalClient", "hInternalDevice", "hInternalSubdevice"):
        assert first.get(handle) != second.get(handle), handle
        assert first.get(handle), handle


@pytest.mark.parametrize(("model", "graphics", "mib"), [(A100, 8, 40960), (T4, 1, 15360)])
def test_engines_and_memory_match_the_model(model: str, graphics: int, mib: int) -> None:
    driver = opened(model)
    table, static = driver.ask(ENGINES), driver.static_info()

    names = [
        table.text(f"entries[{index}].engineName") for index in range(table.get("numEntries"))
    ]
    assert len([name for name in names if name.startswith("GRAPHICS")]) == graphics
    assert names[-1] == "SW"
    assert static.get("fb_length") == mib << 20
    facts = driver.device.state.facts
    tpcs = [static.get(f"tpcInfo[{gpc}].tpcMask").bit_count() for gpc in range(facts.gpcs)]
    assert (sum(tpcs), max(tpcs) - min(tpcs) < 2) == (facts.tpcs, True)
    assert static.get("fbRegionInfoParams.fbRegion[0].limit") == (mib << 20) - 1


def test_reported_brand_is_not_a_gaming_brand() -> None:
    _, answer = opened().control(
        GPU_INFO, struct.pack("<III", 1, 0x80000011, 0).ljust(0x20C, b"\0")
    )

    assert words(answer, 4, 8) == [0x11, 1]


def test_serial_number_is_invented_but_part_numbers_match_the_recorded_card() -> None:
    board, chip = opened(H100, number=9).ask(BOARD), opened(H100).ask(CHIP)

    assert board.text("serialNumber") == "1000000000009"
    assert board.text("productPartNumber") == real_h100("board_part_number")
    part = f"{chip.get('pciDevId'):04X}-{chip.text('chipSku')}-"
    part += f"{chip.get('chipMajor'):X}{chip.get('chipMinor'):X}"
    assert part == real_h100("gpu_part_number")


def test_reported_chip_and_bars_match_the_configuration_space() -> None:
    driver = opened(A100)
    pci = driver.device.state.model.pci
    places = {0: 0xE000_0000, 1: 0x10_0000_0000, 3: 0x20_0000_0000}
    driver.device.state.bar_address = places.get
    # The answer sorts the BARs, so the order in the model does not matter.
    driver.device.state.bars = dict(sorted(driver.device.state.bars.items(), reverse=True))

    chip, bars = driver.ask(CHIP_INFO), driver.ask(BARS)

    assert chip.get("pciDeviceId") == pci.device << 16 | pci.vendor
    assert chip.get("pciSubDeviceId") == pci.subsystem << 16 | pci.subsystem_vendor
    assert chip.get("pciRevisionId") == pci.revision
    for position, (index, place) in enumerate(places.items()):
        entry, size = f"pciBarInfo[{position}]", driver.device.state.bars[index].size
        assert bars.get(f"{entry}.barOffset") == place
        assert (bars.get(f"{entry}.barSizeBytes"), bars.get(f"{entry}.barSize")) == (
            size,
            size >> 20,
        )


def test_memory_transfer_command_copies_and_fills_gpu_memory() -> None:
    driver = opened(A100)
    driver.ram.write(0x40000, b"hello")
    asked = {
        "src.baseAddr": 0x40000,
        "src.offset": 1,
        "transferSize": 3,
        "dst.aperture": 2,
        "dst.baseAddr": 0x1000,
        "dst.offset": 5,
    }

    driver.ask(TRANSFER, asked)
    driver.ask(TRANSFER, {**asked, "dst.offset": 8, "memop": 1, "value": 0x141})

    assert driver.device.read(0, 0x701004, 8) == int.from_bytes(b"\0ellAAA\0", "little")
    assert driver.control(TRANSFER, bytes(80) + struct.pack("<QII", MOST_BYTES, 0, 1))[0] == 0
    too_much = bytes(80) + struct.pack("<QII", MOST_BYTES + 1, 0, 1)
    assert driver.control(TRANSFER, too_much)[0] == 0x1F


def test_inforom_has_the_versions_of_the_recorded_card() -> None:
    driver = opened(H100)

    assert driver.ask(IMAGE).text("version") == real_h100("img_version")
    for kind, element in ((b"ECC", "ecc_object"), (b"OBD", "oem_object")):
        _, version = driver.control(0x2080014B, kind + bytes(2))
        assert f"{version[3]}.{version[4]}" == real_h100(element)
    assert driver.control(0x2080014B, b"PWR\0\0")[0] == NOT_SUPPORTED
    assert opened(T4).control(IMAGE, bytes(16))[0] == NOT_SUPPORTED


def test_remapper_histogram_reports_the_bank_count_of_the_recorded_card() -> None:
    banks = opened(H100).ask(HISTOGRAM).get("histogram[0]")

    assert f"{banks} bank(s)" == real_h100("row_remapper_histogram_max")


def test_reported_pcie_generation_matches_the_chip() -> None:
    asked = struct.pack("<III", 1, 0x2D, 0).ljust(0x1A4, b"\0")

    for model, generation in ((T4, 3), (A100, 4), (H100, 5)):
        _, answer = opened(model).control(BUS_INFO, asked)
        (link,) = words(answer, 8)
        assert link & 0xF == generation, model
        assert link >> 4 & 0x3F == 16
        assert [link >> shift & 0xF for shift in (12, 16, 20)] == [generation - 1] * 3


def test_video_engine_sample_contains_the_idle_time_of_the_engine() -> None:
    """Without an idle time, nvidia-smi 550 showed 'Unknown Error'."""
    assert opened().control(0x20802087, struct.pack("<III", 3, 9, 0)) == (
        0,
        struct.pack("<III", 3, 0, 166_667),
    )


def test_utilization_samples_of_ten_seconds_show_an_idle_gpu() -> None:
    samples = opened().ask(SAMPLES)

    count = samples.get("count")
    times = [samples.get(f"samples[{index}].base.timeStamp") for index in range(count)]
    assert count == 72
    assert times == sorted(set(times))
    assert 9e9 < times[-1] - times[0] < 10e9
    for engine in ("gr", "fb", "nvenc", "nvdec", "nvjpg", "nvofa"):
        seen = {samples.get(f"samples[{index}].{engine}.util") for index in range(count)}
        assert (engine, seen) == (engine, {0})
        assert samples.get(f"samples[0].{engine}.procId") == 0xFFFFFFFF, engine


def test_samples_of_utilization_are_not_supported_with_mig() -> None:
    driver = opened()
    driver.control(SET_MIG_MODE, struct.pack("<I", 2))

    assert driver.control(SAMPLES, bytes(50704))[0] == NOT_SUPPORTED


def test_firmware_has_the_version_of_the_driver() -> None:
    for release in known_releases():
        driver = Driver(a_device(A100), release)
        driver.open()

        assert driver.ask(FEATURES).text("firmwareVersion") == release


def sensors(driver: Driver, opcode: int) -> tuple[int, list[int]]:
    """Send one instruction to the sensors; return its status and operands."""
    asked = bytearray(0x598)
    struct.pack_into("<III4xII", asked, 0, 1, 0, 0x2C, 3, 1)
    struct.pack_into("<I", asked, 0x14, 1)
    struct.pack_into("<I", asked, 0x20, opcode)
    status, answer = driver.control(SENSORS, bytes(asked))
    assert status == 0
    assert words(answer, 0x10) == [1]
    return words(answer, 0x18)[0], words(answer, 0x24, 0x28)


def test_temperature_sensor_reports_the_temperature_set_by_the_test() -> None:
    driver = opened(H100)
    driver.device.readings.temperature_c = 80

    assert sensors(driver, 0x100) == (0, [1, 0])
    assert sensors(driver, 0x101) == (0, [0, 1])
    assert sensors(driver, 0x1500) == (0, [0, 80])
    assert sensors(driver, 0x1234)[0] == NOT_SUPPORTED
    driver.device.readings.temperature_c = -5
    assert sensors(driver, 0x1500) == (0, [0, (1 << 32) - 5])
    driver.device.readings.temperature_c = 80
    both = bytearray(0x598)
    struct.pack_into("<I", both, 0x14, 2)
    for index, opcode in enumerate((0x101, 0x1500)):
        struct.pack_into("<I", both, 0x20 + 0x2C * index, opcode)
    assert words(driver.control(SENSORS, bytes(both))[1], 0x28, 0x28 + 0x2C) == [1, 80]
    _, margin = driver.control(MARGIN, bytes(0x614))
    assert words(margin, 0x110) == [7 << 8]
    for each, has_margin in ((driver, 1), (opened(A100), 0)):
        assert words(each.control(TEMPERATURE_POLICIES, bytes(0x5D8))[1], 0, 0x14) == [
            1,
            has_margin,
        ]


def test_sensor_request_with_too_many_instructions_gets_an_answer_of_equal_size() -> None:
    asked = bytearray(0x598)
    struct.pack_into("<I", asked, 0x14, 0xFFFFFFFF)

    status, answer = opened().control(SENSORS, bytes(asked))

    assert (status, words(answer, 0x10), len(answer)) == (0, [32], 0x598)


def test_temperature_limits_come_from_the_model() -> None:
    driver = opened(A100)

    for index, limit in ((0x16, 92), (4, 89)):
        _, answer = driver.control(TEMPERATURE_LIMIT, struct.pack("<I20x", index))
        assert words(answer, 4) == [limit << 8]
    assert driver.control(TEMPERATURE_LIMIT, struct.pack("<I20x", 7))[0] == NOT_SUPPORTED
    assert words(driver.control(OPERATING, bytes(0x58C))[1], 0x10) == [85 << 8]
    assert driver.control(MARGIN, bytes(0x614))[0] == NOT_SUPPORTED


def test_power_limits_match_the_recorded_card() -> None:
    driver = opened(H100)
    driver.device.readings.power_w = 70.75

    _, drawn = driver.control(POWER, bytes(0x3B14))
    _, limits = driver.control(POLICIES, bytes(0x1B28))

    assert words(drawn, 0x24) == [70_750]
    shown = [f"{limit / 1000:.2f} W" for limit in words(limits, 0x5C, 0x60, 0x64)]
    assert shown == [
        real_h100("min_power_limit"),
        real_h100("default_power_limit"),
        real_h100("max_power_limit"),
    ]


def test_power_request_of_release_535_with_shorter_parameters_is_answered() -> None:
    """Without an answer to the shorter parameters of 535, `nvidia-smi` shows 'Unknown Error'."""
    driver = opened(A100)
    driver.device.readings.power_w = 70.75

    assert words(driver.control(POWER, bytes(0xC14))[1], 0x24) == [70_750]
    assert driver.control(POWER, bytes(0xC18))[0] == NOT_SUPPORTED


def test_power_policies_are_not_supported_without_limits_or_with_a_wrong_request_size() -> None:
    assert opened(T4).control(POLICIES, bytes(0x1B28))[0] == NOT_SUPPORTED
    assert opened(H100).control(POLICIES, bytes(0x1B24))[0] == NOT_SUPPORTED
    driver = opened(H100)
    driver.device.state.facts = replace(driver.device.state.facts, least_power_limit_w=None)
    assert driver.control(POLICIES, bytes(0x1B28))[0] == NOT_SUPPORTED


def test_every_answer_has_the_same_size_as_the_request_parameters() -> None:
    for release, size in (("550.163.01", 0), ("550.163.01", 14), ("535.261.03", 5)):
        driver = Driver(a_device(A100), release)
        driver.open()

        for command in sorted(ANSWERS):
            assert len(driver.control(command, bytes(size))[1]) == size, hex(command)


def test_gpu_trace_records_unknown_commands_and_an_unsupported_driver_release() -> None:
    """A failed test's evidence contains the trace; a refused command does not count as unknown."""
    model = find_model(A100).emulated_as(GpuEmulation.GSP)
    counts, traces = [], []
    for release in ("550.163.01", "999.12.34"):
        bars = model.bars.vfio_user
        gpu = EmulatedGpu(model, bars=bars, is_express=True, engine=make_engine(model, bars, 1))
        device = gpu.engine
        assert isinstance(device, GspDevice)
        driver = Driver(device, release)
        driver.open()
        for command in (next(iter(REFUSED)), 0x2080FFFF, 0x2080FFFF):
            assert driver.control(command, bytes(16))[0] == NOT_SUPPORTED
        counts.append(dict(device.state.unknown_commands))
        traces.append(gpu.trace)

    assert counts[0] == {0x2080FFFF: 2}
    known, refused = traces
    assert [one.words for one in known.incidents_of(IncidentKind.COMMAND_UNKNOWN)] == [
        "0x2080ffff"
    ]
    (refusal,) = refused.incidents_of(IncidentKind.DRIVER_REFUSED)
    assert "NVIDIA's driver 999.12.34 opened the emulated GPU" in (refusal.words or "")


def test_call_is_refused_if_the_users_data_of_the_release_lacks_a_structure(
    tmp_path: Path,
) -> None:
    data = {"schema": 1, "release": "999.12.34", "structs": {}, "commands": {}, "constants": {}}
    folder = tmp_path / "releases"
    folder.mkdir()
    (folder / "999.12.34.json").write_text(json.dumps(data))
    model = find_model(A100).emulated_as(GpuEmulation.GSP)
    bars = model.bars.vfio_user
    engine = make_engine(model, bars, 1, (tmp_path,))
    gpu = EmulatedGpu(model, bars=bars, is_express=True, engine=engine)
    device = gpu.engine
    assert isinstance(device, GspDevice)
    driver = Driver(device, "999.12.34")
    driver.open()

    result, _ = driver.call(Function.GET_GSP_STATIC_INFO, bytes(64))

    assert result == NOT_SUPPORTED
    (refusal,) = gpu.trace.incidents_of(IncidentKind.DRIVER_REFUSED)
    assert "generate the data again" in (refusal.words or "")
    assert driver.call(Function.FREE, bytes(12))[0] == 0


def test_empty_xid_text_gets_a_default_and_a_long_xid_text_is_cut() -> None:
    """The driver does not log an Xid without a text."""
    driver = opened()
    driver.static_info()

    for xid, text, shown in ((13, "", b".+"), (200, "", b".+"), (48, "x" * 300, b"x{255}")):
        driver.device.raise_xid(xid, text)
        driver.work()
        ((function, _, body),) = driver.events()
        assert function == Function.OS_ERROR_LOG
        assert words(body, 0) == [xid]
        assert re.fullmatch(shown, body[12:].split(b"\0")[0]), xid


def test_refused_commands_are_not_defined_in_any_known_driver_release() -> None:
    for release in known_releases():
        layouts = read_layouts(release)

        assert [hex(each) for each in REFUSED if layouts.command(each) is not None] == []
