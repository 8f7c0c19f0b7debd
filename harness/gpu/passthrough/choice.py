"""Finds the GPUs of the host that fit the requests of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import BadInputError, RequirementError, listed
from harness.gpu.passthrough import VerdictKind, parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from harness.gpu.passthrough import GpuChoice, HostDevices, HostGpu


def candidates(
    wanted: Sequence[GpuChoice], host: HostDevices, held: AbstractSet[str]
) -> tuple[tuple[str, ...], ...]:
    """Return, for each request in `wanted`, the GPUs that fit the request now or may fit later.

    A GPU in `held` may fit later whatever its verdict is now, since only a free GPU can be judged.
    """
    if not wanted:
        raise BadInputError("0 GPUs are wanted; request at least one.", source="GpuPool.lease")
    found = []
    for choice in wanted:
        fitting = _fitting(choice, host)
        later = [
            gpu.address
            for gpu in fitting
            if gpu.verdict.kind <= VerdictKind.BUSY or gpu.address in held
        ]
        if not later:
            reasons = " ".join(f"{gpu.address}: {gpu.verdict.reason}" for gpu in fitting)
            raise RequirementError(f"{choice} can't be leased. {reasons}")
        found.append(tuple(later))
    several = {address for each in found for address in each}
    if len(several) < len(wanted):
        raise RequirementError(
            f"{len(wanted)} GPUs are requested together, but this host can lease only {len(several)} "
            f"that fit ({listed(sorted(several))}); request fewer GPUs, or use another host."
        )
    return tuple(found)


def _fitting(choice: GpuChoice, host: HostDevices) -> list[HostGpu]:
    """Return the GPUs that match `choice`; raises RequirementError if there are none."""
    if choice.address is None:
        fitting = [gpu for gpu in host.gpus if choice.model is None or gpu.is_model(choice.model)]
    else:
        address = parse_address(choice.address, source="GpuChoice", key="address")
        fitting = [gpu for gpu in host.gpus if gpu.address == address]
        function = host.functions.get(address)
        if not fitting and function is not None:
            raise RequirementError(f"{function} is not a GPU. {_all_gpus(host)}")
    if not fitting:
        raise RequirementError(
            f"This host does not have the requested GPUs: {choice}. {_all_gpus(host)}"
        )
    return fitting


def _all_gpus(host: HostDevices) -> str:
    if not host.gpus:
        return "This host has no GPU on its PCI bus; `lspci` lists its devices."
    gpus = ", ".join(f"{gpu.address} ({gpu.model or gpu.function.ids})" for gpu in host.gpus)
    return f"This host's GPUs are {gpus}; `harness gpu host ls` lists them with a verdict."
