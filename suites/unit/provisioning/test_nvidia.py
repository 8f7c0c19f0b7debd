"""Driver kinds, types by VM size, and image references."""

from __future__ import annotations

from harness.provisioning.nvidia import (
    DriverImage,
    driver_kind,
    driver_type_for,
    is_same_kind,
)


def test_driver_types_are_compared_by_their_kind() -> None:
    kinds = {
        "cuda-lts": "cuda",
        "grid-v20": "grid",
        "other": "other",
        "my-cuda": "my-cuda",
        "": None,
        None: None,
    }

    assert {driver_type: driver_kind(driver_type) for driver_type in kinds} == kinds
    assert is_same_kind("cuda", "cuda-lts")
    assert is_same_kind("other", "other")
    assert not is_same_kind("cuda", "grid")
    assert not is_same_kind(None, "")


SIZES = {
    "Standard_NC128ds_xl_RTXPRO6000BSE_v6": "grid-v20",
    "standard_nc320lds_xl_rtxpro6000bse_v6": "grid-v20",
    "Standard_NC128ds_xl_RTXPRO6000BSE_v7": "cuda-lts",
    "Standard_NC128ds_xl_RTXPRO6000BSE_v6_Promo": "cuda-lts",
    "Basic_NC128ds_xl_RTXPRO6000BSE_v6": "cuda-lts",
    "Standard_NV6ads_A10_v5": "grid",
    "Standard_NV12ads_A10_v5": "grid",
    "Standard_NV18ads_A10_v5": "grid",
    "Standard_NV36ads_A10_v5": "grid",
    "Standard_NV36adms_A10_v5": "grid",
    "Standard_NV72ads_A10_v5": "grid",
    "Standard_NC8ads_A10_v4": "grid",
    "Standard_NC16ads_A10_v4": "grid",
    "Standard_NC32ads_A10_v4": "grid",
    "Standard_NV4ads_A10_v5": "cuda-lts",
    "Standard_NC8ads_A10_v5": "cuda-lts",
    "STANDARD_NC6": "cuda",
    "Standard_NC24r": "cuda",
    "Standard_NC24_Promo": "cuda",
    "Standard_NC24s_v2": "cuda-lts",
    "Standard_NC6s_V3": "cuda-lts",
    "Basic_NC6": "cuda-lts",
    "Standard_ND96isr_H100_v5": "cuda-lts",
    "Standard_NV6": "cuda-lts",
}


def test_vm_size_determines_the_driver_type() -> None:
    assert {size: driver_type_for(size) for size in SIZES} == SIZES


def test_driver_image_has_the_mcr_name_whatever_registry_it_is_pulled_from() -> None:
    image = DriverImage(
        driver_type="grid", version="570.86.15", sha="20260101", registry="registry.example:5000/"
    )

    assert image.tag == "570.86.15-20260101"
    assert image.name == "mcr.microsoft.com/aks/aks-gpu-grid:570.86.15-20260101"
    assert image.pull_reference == "registry.example:5000/aks/aks-gpu-grid:570.86.15-20260101"
    default = DriverImage(driver_type="grid", version="570.86.15", sha="20260101")
    assert default.pull_reference == image.name
