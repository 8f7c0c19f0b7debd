"""What the driver, and by way of it nvidia-smi, is answered about the GPU."""

from __future__ import annotations

import pytest

from suites.unit.gpu.gsp.drivers import A100, H100, Driver, a_device


def opened(model: str = A100, *, number: int = 1) -> Driver:
    driver = Driver(a_device(model, number))
    driver.open()
    return driver


@pytest.mark.parametrize("handle", ["hInternalClient", "hInternalDevice", "hInternalSubdevice"])
def test_gpus_of_a_machine_have_handles_of_their_own(handle: str) -> None:
    """The driver keeps answers by handle: with the same, `nvidia-smi -q` showed one GPU's ids for both."""
    first, second = opened(A100, number=1).static_info(), opened(H100, number=2).static_info()

    assert first.get(handle) != second.get(handle)
    assert first.get(handle)
