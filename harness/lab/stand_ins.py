"""The stand-ins of node images, and variables by which a test makes a stand-in slow or fail."""

from __future__ import annotations

import difflib
import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING

from harness.cloudinit import GuestFile
from harness.errors import BadInputError, listed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

STAND_INS = "/etc/gpu-node/stand-ins"

#: The variables that a stand-in's program (`/usr/lib/gpu-node/stand-in`) reads, with their valid
#: values.
UNIT_VARIABLES: Mapping[str, re.Pattern[str]] = {
    "START_DELAY_S": re.compile(r"[0-9]+(\.[0-9]+)?|infinity"),
    "START_RESULT": re.compile(r"ok|fail"),
}
UNITS = (
    *("kubelet", "node-problem-detector", "nvidia-dcgm", "nvidia-dcgm-exporter"),
    *("nvidia-device-plugin", "nvidia-modprobe"),
)
VARIABLES: Mapping[str, Mapping[str, re.Pattern[str]]] = {
    **dict.fromkeys(UNITS, UNIT_VARIABLES),
    "nvidia-smi": {"INFOROM": re.compile(r"corrupted|")},
}


def check_stand_ins(
    stand_ins: Mapping[str, Mapping[str, str | float]], files: Sequence[GuestFile]
) -> None:
    """Raise BadInputError for a stand-in or a variable that nothing on the node reads.

    A node may have additional stand-ins: units among its own files that read `STAND_INS/NAME.env`.
    """
    for name, variables in stand_ins.items():
        if name not in VARIABLES and any(
            f"{STAND_INS}/{name}.env".encode() in file.content for file in files
        ):
            known = UNIT_VARIABLES
        else:
            if name not in VARIABLES:
                raise BadInputError(
                    f"There is no stand-in '{name}'; {_nearest(name, VARIABLES)} To use a systemd "
                    f"unit of your own as the stand-in '{name}', add the unit to the request's 'files', and "
                    f"let the unit read '{STAND_INS}/{name}.env'.",
                    source="NodeRequest",
                    key=f"stand_ins.{name}",
                )
            known = VARIABLES[name]
        for variable, value in variables.items():
            key = f"stand_ins.{name}.{variable}"
            if variable not in known:
                raise BadInputError(
                    f"The stand-in '{name}' has no variable '{variable}'; {_nearest(variable, known)}",
                    source="NodeRequest",
                    key=key,
                )
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                raise BadInputError(
                    f"The value is of type {type(value).__name__}, but a text or a number was "
                    "expected.",
                    source="NodeRequest",
                    key=key,
                )
            if known[variable].fullmatch(_text(value)) is None:
                raise BadInputError(
                    f"The stand-in '{name}' does not accept the value '{value}'; a value of "
                    f"'{variable}' has to match '{known[variable].pattern}'.",
                    source="NodeRequest",
                    key=key,
                )


def _nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{near[0]}'?" if near else f"valid names are {listed(known)}."


def _text(value: str | float) -> str:
    """Return a value as `sleep` reads it; a number has no exponent."""
    if value == math.inf:
        return "infinity"
    return f"{Decimal(repr(value)):f}" if isinstance(value, float) else str(value)


def stand_in_files(stand_ins: Mapping[str, Mapping[str, str | float]]) -> tuple[GuestFile, ...]:
    """Return the environment files with which stand-in units start slowly or fail."""
    return tuple(
        GuestFile(
            path=f"{STAND_INS}/{unit}.env",
            content="".join(
                f"{key}={_text(value)}\n" for key, value in variables.items()
            ).encode(),
        )
        for unit, variables in stand_ins.items()
    )
