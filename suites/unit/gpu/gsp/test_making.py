"""The GPU models for which a GSP engine can be made."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.gpu.catalogue import find_model, load_catalogue
from harness.gpu.gsp.making import make_engine
from harness.gpu.serving import serve_gpu
from harness.gpu.transport import Transport
from harness.settings import GpuEmulation

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT_GSP = {"v100-pcie-16gb", "rtx-pro-6000-server-96gb"}


def test_gsp_engine_is_made_for_every_model_since_turing_except_blackwell() -> None:
    models = load_catalogue().models

    assert {name for name, model in models.items() if model.gsp is None} == WITHOUT_GSP
    for name in set(models) - WITHOUT_GSP:
        make_engine(models[name], models[name].bars.vfio_user, 1)


def test_model_without_a_gsp_or_with_an_unknown_chip_is_refused_with_a_sentence(
    tmp_path: Path,
) -> None:
    for name in WITHOUT_GSP:
        model = find_model(name).emulated_as(GpuEmulation.GSP)
        with pytest.raises(RequirementError, match=f"'{name}' has no emulated system processor"):
            serve_gpu(model, Transport.VFIO_USER, folder=tmp_path, aperture_mib=1024)

    model = replace(find_model("t4-16gb"), chip=0x1B2)

    with pytest.raises(RequirementError, match=r"chip 0x1b2, whose boot .* chips are 'AD102'"):
        make_engine(model, model.bars.vfio_user, 1)


def test_gpu_has_a_gsp_engine_only_with_gsp_emulation(tmp_path: Path) -> None:
    model = find_model("t4-16gb")

    identity = serve_gpu(model, Transport.MPQEMU, folder=tmp_path)
    opened = serve_gpu(model.emulated_as(GpuEmulation.GSP), Transport.MPQEMU, folder=tmp_path)

    assert identity.gpu.engine is None
    assert opened.gpu.engine is not None
