"""The fake of NVIDIA's management library answers from the node's state and never crashes."""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from harness.gpu.catalogue import load_catalogue
from suites.host.nvml.library import REPOSITORY, VERSION, Library

if TYPE_CHECKING:
    from harness.gpu import GpuModel

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler (package gcc)"),
]

MODELS = [
    model
    for model in load_catalogue().models.values()
    # The imitated release of the library is older than Blackwell.
    if model.architecture != "Blackwell"
]
H100 = load_catalogue().get("h100-sxm5-80gb")
T4 = load_catalogue().get("t4-16gb")

FUNCTIONS = re.findall(
    r"^UNSUPPORTED\((nvml\w+)\)$",
    (REPOSITORY / "images/nvidia-driver/nvml/unsupported.c").read_text(),
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library.compiled_in(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def library(compiled: Library) -> Library:
    compiled.empty_node()
    return compiled


def devices_of(library: Library) -> list[Any]:
    answer = library.ask()
    devices = answer["devices"]
    assert isinstance(devices, list), answer
    return devices


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_nvml_reports_the_name_and_pci_ids_and_mig_mode_and_memory_of_each_gpu_model(
    library: Library, model: GpuModel
) -> None:
    library.load_driver()
    library.plug(model)

    (device,) = devices_of(library)

    pci = model.pci
    assert device["name"] == model.title
    assert device["ids"] == (
        f"{pci.device:04x}{pci.vendor:04x} {pci.subsystem:04x}{pci.subsystem_vendor:04x}"
    )
    assert device["mig"] == ([0, 0] if model.has_mig else "error 3")
    # The last part of a model's name, such as 80gb; tools show some per cent less or more.
    size_gib = int(re.findall(r"(\d+)gb$", model.name)[0])
    assert abs(device["memory_mib"] / 1024 - size_gib) / size_gib < 0.1


def test_gpus_are_listed_in_the_order_of_their_addresses(library: Library) -> None:
    library.load_driver()
    for slot in (2, 0, 1):
        library.plug(H100, slot)

    devices = devices_of(library)

    assert [device["bus_id"] for device in devices] == [
        "00000000:01:00.0",
        "00000000:02:00.0",
        "00000000:03:00.0",
    ]
    assert [device["index"] for device in devices] == [0, 1, 2]
    assert [device["minor"] for device in devices] == [0, 1, 2]
    assert [device["by_uuid"] for device in devices] == [0, 1, 2]
    assert [device["by_bus_id"] for device in devices] == [0, 1, 2]


def test_each_gpu_has_its_own_stable_uuid(library: Library) -> None:
    library.load_driver()
    library.plug(H100, 0)
    library.plug(H100, 1)

    first, second = (device["uuid"] for device in devices_of(library))

    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", first)
    assert first != second
    assert [device["uuid"] for device in devices_of(library)] == [first, second]


def test_gpu_that_the_driver_cannot_name_gets_the_name_of_its_model(library: Library) -> None:
    library.load_driver()
    library.plug(T4, name="Unknown")

    (device,) = devices_of(library)

    assert device["name"] == "Tesla T4"


def test_driver_without_gpus_lists_no_devices(library: Library) -> None:
    library.load_driver()

    assert library.ask() == {"driver": VERSION, "cuda": 12020, "devices": []}


def test_query_without_a_driver_fails_with_driver_not_loaded(library: Library) -> None:
    assert library.ask() == {"error": 9, "words": "Driver Not Loaded"}


def test_first_nvml_call_loads_the_driver(library: Library) -> None:
    """The stand-in library runs the setuid program, as the real library does."""
    library.load_driver()
    version = library.root / "proc/driver/nvidia/version"
    library.install_probe(f"[ -n \"$*\" ] || printf '%s' '{version.read_text()}' >{version}")
    version.unlink()

    assert library.ask()["driver"] == VERSION
    assert library.probe_calls() == ["", "-c255"]


def test_nvidia_modprobe_is_called_only_for_the_missing_device_node(library: Library) -> None:
    library.load_driver()
    library.plug(H100, 0)
    library.plug(H100, 1)
    library.install_probe("")
    (library.root / "dev").mkdir()
    (library.root / "dev/nvidiactl").touch()
    (library.root / "dev/nvidia0").touch()

    assert len(devices_of(library)) == 2
    assert library.probe_calls() == ["-c1"]


def test_query_with_a_driver_of_another_version_returns_a_version_mismatch(
    library: Library,
) -> None:
    """A node has this mismatch if the module of another driver is still loaded."""
    library.load_driver("580.126.09")

    assert library.ask() == {"error": 18, "words": "RM has detected an NVML/RM version mismatch."}


def test_gpu_that_left_the_bus_does_not_hide_other_gpus(library: Library) -> None:
    library.load_driver()
    lost = library.plug(H100, 0)
    library.plug(H100, 1)
    library.lose(lost)

    first, second = devices_of(library)

    assert first == "error 15"
    assert second["name"] == H100.title


def test_temperature_query_returns_not_supported(library: Library) -> None:
    library.load_driver()
    library.plug(H100)

    (device,) = devices_of(library)

    assert device["temperature"] == "error 3"
    assert device["processes"] == []


SET_MIG_MODE = """
import json, pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
try:
    print(json.dumps(pynvml.nvmlDeviceSetMigMode(device, 1)))
except pynvml.NVMLError as error:
    print(error.value)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may set a GPU's MIG mode")
def test_mig_mode_takes_effect_at_the_next_boot(library: Library) -> None:
    library.load_driver()
    library.plug(H100)

    activation = json.loads(library.run(SET_MIG_MODE))

    assert activation == 3
    (device,) = devices_of(library)
    assert device["mig"] == [0, 1]
    library.boot("second")
    (device,) = devices_of(library)
    assert device["mig"] == [1, 1]


def test_setting_the_mig_mode_of_a_gpu_without_mig_returns_not_supported(library: Library) -> None:
    library.load_driver()
    library.plug(T4)

    assert json.loads(library.run(SET_MIG_MODE)) == 3


CALL_ALL = """
import ctypes
library = ctypes.CDLL("libnvidia-ml.so.1")
for is_open in (False, True):
    if is_open:
        assert library.nvmlInit_v2() == 0
    for name in {functions}:
        if is_open and name in ("nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown"):
            continue
        result = getattr(library, name)(0, 0, 0, 0, 0, 0)
        assert is_open or name == "nvmlErrorString" or result != 999, name
print("alive")
"""


def test_no_function_crashes_when_it_gets_null_pointers(library: Library) -> None:
    """The test calls each function with null pointers, before and after the library is opened."""
    library.load_driver()
    library.plug(H100)

    assert len(FUNCTIONS) == 331
    assert library.run(CALL_ALL.format(functions=FUNCTIONS)) == "alive\n"


WRONG_HANDLES = """
import ctypes
library = ctypes.CDLL("libnvidia-ml.so.1")
library.nvmlInit_v2()
device = ctypes.c_void_p()
assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
name = ctypes.create_string_buffer(96)
answers = [
    library.nvmlDeviceGetName(handle, name, size)
    for handle, size in (
        (ctypes.c_void_p(8), 96),
        (ctypes.c_void_p(device.value + 8), 96),
        (ctypes.c_void_p(device.value + 4096), 96),
        (device, 4),
        (device, 96),
    )
]
print(answers, library.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(device)))
"""


def test_unknown_handle_and_short_buffer_are_refused(library: Library) -> None:
    library.load_driver()
    library.plug(H100)

    assert library.run(WRONG_HANDLES) == "[2, 2, 2, 7, 0] 2\n"
