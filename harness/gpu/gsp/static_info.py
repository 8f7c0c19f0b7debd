"""Fills the answer to GET_GSP_STATIC_INFO, a call that returns many facts about the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from harness.gpu.gsp.engines import engine_mask
from harness.gpu.gsp.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.gpu.gsp.engines import Engine
    from harness.gpu.gsp.layouts import Layouts
    from harness.gpu.gsp.state import GpuState

#: Handles of the GSP's own objects, which the driver uses in calls. The GPU's number is added to
#: them, since the driver caches answers by handle: with equal handles, the driver would show one
#: GPU's answers for another GPU.
_CLIENT: Final = 0xC1D00000
_DEVICE: Final = 0xDE1D0000
_SUBDEVICE: Final = 0x5BD00000

STATIC_INFO: Final = "GspStaticConfigInfo"

#: The GID is binary and has 16 bytes.
GID_IS_BINARY: Final = 2


def gpc_masks(gpcs: int, tpcs: int) -> list[int]:
    """Distribute TPCs over GPCs as evenly as possible; return a mask of TPCs for each GPC."""
    least, more = divmod(tpcs, gpcs)
    return [(1 << least + (index < more)) - 1 for index in range(gpcs)]


def fill_static_info(
    data: bytearray, layouts: Layouts, state: GpuState, found: Sequence[Engine]
) -> None:
    """Write the information into `data`, a GspStaticConfigInfo."""
    facts, model = state.facts, state.model
    record = Record(layouts, STATIC_INFO, data)
    title = model.title.encode()
    engine_types = engine_mask(list(found))
    values: dict[str, int | bytes] = {
        "gidInfo.flags": GID_IS_BINARY,
        "gidInfo.length": 16,
        "gidInfo.data": state.uuid.bytes,
        "gpcInfo.gpcMask": (1 << facts.gpcs) - 1,
        "fbRegionInfoParams.numFBRegions": 1,
        "fbRegionInfoParams.fbRegion[0].base": 0,
        "fbRegionInfoParams.fbRegion[0].limit": state.memory_bytes - 1,
        "fbRegionInfoParams.fbRegion[0].reserved": 0,
        "fbRegionInfoParams.fbRegion[0].performance": 100,
        "fbRegionInfoParams.fbRegion[0].supportCompressed": 1,
        "fbRegionInfoParams.fbRegion[0].supportISO": 1,
        "fb_length": state.memory_bytes,
        "fb_bus_width": facts.memory_bus_bits,
        "fb_ram_type": state.chip.memory_type,
        "fbio_mask": 0xFFFFFF,
        "fbp_mask": 0xFFF,
        "l2_cache_size": facts.l2_cache_mib << 20,
        "gpuNameString": title,
        "gpuShortNameString": state.chip.name.encode(),
        "gpuNameString_Unicode": model.title.encode("utf-16-le"),
        "engineCaps": engine_types.to_bytes(8, "little"),
        "bar1PdeBase": state.bar1_root,
        "bar2PdeBase": state.bar2_root,
        "bIsTesla": 1,
        # Without this field, driver 535 logs that its module is only for data centre GPUs.
        "computeBranding": 1,
        "bVbiosValid": 1,
        "vbiosSubVendor": model.pci.subsystem_vendor,
        "vbiosSubDevice": model.pci.subsystem,
        "SM_info.version": state.chip.sm_version,
        "SM_info.maxWarpsPerSM": state.chip.warps_per_sm,
        "SM_info.maxThreadsPerWarp": 32,
        "hInternalClient": _CLIENT + state.number,
        "hInternalDevice": _DEVICE + state.number,
        "hInternalSubdevice": _SUBDEVICE + state.number,
    }
    for index, mask in enumerate(gpc_masks(facts.gpcs, facts.tpcs)):
        values[f"tpcInfo[{index}].gpcId"] = index
        values[f"tpcInfo[{index}].tpcMask"] = mask
    for path, value in values.items():
        if path in record:
            record.put(path, value)
