"""The inventory: an administrator's YAML file about a host's GPUs."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import pydantic
from pydantic import Field

from harness.datafile import read_document
from harness.errors import BadInputError, listed
from harness.gpu.passthrough import VerdictKind, parse_address

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from harness.gpu.passthrough import HostDevices

_FORBID: pydantic.ConfigDict = pydantic.ConfigDict(extra="forbid")

Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class GpuKeys:
    """The keys of one GPU in the inventory."""

    __pydantic_config__ = _FORBID

    model: Text | None = None
    """The GPU's model in the catalogue, if its PCI ids don't identify the model."""
    exclude: Text | None = None
    """Why the GPU may never be taken."""


@dataclass(frozen=True, kw_only=True)
class InventoryFile:
    """The inventory of a host's GPUs."""

    __pydantic_config__ = _FORBID

    schema: Literal[1] = 1
    """The version of this file's format."""
    gpus: Mapping[Text, GpuKeys | None] = field(default_factory=dict)
    """The GPUs by PCI address."""
    others: Literal["take", "exclude"] = "take"
    """Whether GPUs that are not listed may be taken."""


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """An administrator's entries for the host's GPUs, by address; no entries if there is no file."""

    gpus: Mapping[str, GpuKeys] = field(default_factory=dict)
    takes_others: bool = True
    file: Path | None = None

    def model_of(self, address: str) -> str | None:
        """Return the name of the GPU's model, if the inventory states a model."""
        return self.gpus.get(address, GpuKeys()).model

    def findings(self, address: str) -> list[tuple[VerdictKind, str]]:
        """Return the reason why the GPU at `address` may not be taken, if any."""
        if address not in self.gpus:
            if self.takes_others:
                return []
            reason = f"The GPU is not listed in '{self.file}', which excludes all unlisted GPUs."
            return [(VerdictKind.REFUSED, reason)]
        why = self.gpus[address].exclude
        if why is None:
            return []
        return [(VerdictKind.REFUSED, f"'{self.file}' excludes the GPU: {why.rstrip('.')}.")]

    def require_gpus(self, host: HostDevices) -> None:
        """Raise BadInputError if a listed address is a function of this host, but not a GPU.

        A listed address may have no function, since a GPU may have left the bus.
        """
        for address in self.gpus:
            function = host.functions.get(address)
            if function is not None and not function.is_gpu:
                raise BadInputError(
                    f"{function} is not a GPU; the GPUs of this host are "
                    f"{listed(gpu.address for gpu in host.gpus)}.",
                    source=str(self.file),
                    key=f"gpus.{address}",
                )


def read_inventory(file: Path, models: Collection[str]) -> Inventory:
    """Read an inventory; `models` are the names that the catalogue knows.

    Raises BadInputError, which names the file, the line and the key.
    """
    document = read_document(file)
    content = document.to_shape(InventoryFile)
    gpus: dict[str, GpuKeys] = {}
    for text, keys in content.gpus.items():
        line = document.place(("gpus", text)).line
        where = f"gpus.{text}"
        try:
            address = parse_address(text, source=str(file))
        except BadInputError:
            raise document.refusal(
                f"'{text}' is not a PCI address; write it as `lspci -D` does, such as "
                "'0000:65:00.0', in quotes.",
                ("gpus", text),
            ) from None
        if address in gpus:
            raise BadInputError(
                f"{address} is listed twice; keep one of the two entries.",
                source=str(file),
                line=line,
                key=where,
            )
        one = keys or GpuKeys()
        if one.model is not None and one.model not in models:
            raise document.refusal(
                f"There is no GPU model '{one.model}'; the known models are {listed(sorted(models))}.",
                ("gpus", text, "model"),
            )
        gpus[address] = one
    return Inventory(gpus=gpus, takes_others=content.others == "take", file=file)
