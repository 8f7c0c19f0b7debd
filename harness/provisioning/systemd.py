"""Units: what starts and stops them, and drop-ins that change them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .node import ANSWER_TIMEOUT_S
from .plan import Action, Retry, Run, When, Write

if TYPE_CHECKING:
    from .command import CommandResult

UNIT_DIRECTORY = "/etc/systemd/system"
STOP = Retry(attempts=20, pause_s=5, timeout_s=25)
ENABLE = Retry(attempts=120, pause_s=5, timeout_s=25)


def reload_units() -> Run:
    """Make systemd read the units again; a failure shows in what follows."""
    return Run(argv=("systemctl", "daemon-reload"), retry=Retry(timeout_s=25), is_optional=True)


def start(unit: str, limit_s: float) -> tuple[Run, ...]:
    """Start a unit, waiting until it is ready, and have it start at every boot."""
    return (
        reload_units(),
        Run(
            argv=("systemctl", "restart", unit),
            retry=Retry(attempts=100, pause_s=5, timeout_s=limit_s),
        ),
        Run(argv=("systemctl", "enable", unit), retry=ENABLE),
    )


def enqueue(unit: str, limit_s: float, warning: str) -> tuple[Run, ...]:
    """Have a unit start without waiting for it; a warning is all that a failure leaves.

    One try: a job that systemd does not take now it will not take later either, and a
    monitoring service must not spend the node's time budget.
    """
    return (
        reload_units(),
        Run(
            argv=("systemctl", "restart", "--no-block", unit),
            retry=Retry(timeout_s=limit_s),
            is_optional=True,
            warning=warning,
        ),
        Run(argv=("systemctl", "enable", unit), retry=Retry(timeout_s=25), is_optional=True),
    )


def stop(unit: str) -> tuple[Run, ...]:
    """Stop a unit and have it stay stopped at boot; never fatal."""
    return (
        Run(argv=("systemctl", "stop", unit), retry=STOP, is_optional=True),
        Run(argv=("systemctl", "disable", unit), retry=STOP, is_optional=True),
    )


def reset_failed(*units: str) -> Run:
    """Forget that units failed, and how often they were started lately."""
    return Run(
        argv=("systemctl", "reset-failed", *units),
        retry=Retry(timeout_s=25),
        is_optional=True,
    )


def is_loaded_query(unit: str) -> tuple[str, ...]:
    """Return the question whose answer is `loaded` for a unit that exists.

    Unlike `systemctl cat` this takes a folder of drop-ins without a unit for what it is.
    """
    return ("systemctl", "show", "--property=LoadState", "--value", unit)


def says_loaded(result: CommandResult) -> bool:
    """Tell whether the answer to `is_loaded_query` is that the unit exists."""
    return result.ok and result.stdout.strip() == "loaded"


def where_loaded(unit: str, *then: Action) -> When:
    """Take actions only on a node that has the unit."""
    return When(
        query=is_loaded_query(unit),
        timeout_s=ANSWER_TIMEOUT_S,
        condition=f"the unit {unit} exists",
        otherwise=f"There is no unit {unit}.",
        is_met=says_loaded,
        then=then,
    )


def drop_in(unit: str, name: str, text: str) -> Write:
    """Change a unit of the image's by a file beside it."""
    return Write(path=f"{UNIT_DIRECTORY}/{unit}.service.d/{name}", text=text)
