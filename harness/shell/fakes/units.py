"""The units of the fake of systemctl, and their properties."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from harness.shell.fakes.arguments import check_fields
from harness.shell.fakes.unit_files import TYPES, link_folders, settings

if TYPE_CHECKING:
    from collections.abc import Callable

ALWAYS = math.inf
NOT_MEANT_TO_BE_ENABLED = """\
The unit files have no installation config (WantedBy=, RequiredBy=, Also=,
Alias= settings in the [Install] section, and DefaultInstance= for template
units). This means they are not meant to be enabled using systemctl.
\x20
Possible reasons for having this kind of units are:
• A unit may be statically enabled by being symlinked from another unit's
  .wants/ or .requires/ directory.
• A unit's purpose may be to act as a helper for some other unit which has
  a requirement dependency on it.
• A unit may be started when needed via activation (socket, path, timer,
  D-Bus, udev, scripted systemctl call, ...).
• In case of template units, the unit is meant to be enabled with some
  instance name specified.
"""


class ActiveState(Enum):
    """A unit's state, as `systemctl is-active` prints it."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    FAILED = "failed"


@dataclass(kw_only=True)
class Unit:
    """A unit of the fake.

    `text` is the text of the unit file. The next `start_failures` starts fail; with `ALWAYS`, all
    starts fail. `on_start` is called when the unit has been started. `starts` is the number of
    successful starts. `running_text` is the text of the unit file and its drop-ins at the last
    start.
    """

    is_active: bool = False
    is_enabled: bool = False
    is_masked: bool = False
    text: str = "[Service]\n[Install]\nWantedBy=multi-user.target\n"
    folder: str = "/lib/systemd/system"
    start_failures: float = 0
    on_start: Callable[[], None] | None = None
    starts: int = 0
    running_text: str = ""
    is_failed: bool = False
    loaded: dict[str, str] = field(default_factory=dict)
    was_active: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def state(self) -> ActiveState:
        if self.is_failed:
            return ActiveState.FAILED
        return ActiveState.ACTIVE if self.is_active else ActiveState.INACTIVE

    @property
    def is_oneshot(self) -> bool:
        return self._setting("Type") == "oneshot"

    @property
    def remains_after_exit(self) -> bool:
        # The words for true in systemd.syntax(7).
        return self._setting("RemainAfterExit").lower() in {"1", "yes", "y", "true", "t", "on"}

    def _setting(self, name: str) -> str:
        """Return a setting's last value in the unit file, or an empty text if there is no value."""
        values = settings(self.text, name)
        return values[-1] if values else ""

    @property
    def sub_state(self) -> str:
        if self.is_failed:
            return "failed"
        if not self.is_active:
            return "dead"
        return "exited" if self.is_oneshot else "running"

    @property
    def file_state(self) -> str:
        if self.is_masked:
            return "masked"
        if not link_folders(self.text):
            return "static"
        return "enabled" if self.is_enabled else "disabled"


def full_name(name: str) -> str:
    """Return a unit's name with its suffix; add `.service` to a name without a suffix."""
    return name if name.endswith(TYPES) else f"{name}.service"


def properties(name: str, unit: Unit | None) -> dict[str, str]:
    """Return the properties of a unit, in the order in which `systemctl show` prints them."""
    if unit is None:
        unit, load_state, path, file_state = Unit(), "not-found", "", ""
    else:
        load_state = "masked" if unit.is_masked else "loaded"
        path, file_state = f"{unit.folder}/{name}", unit.file_state
    return {
        "Result": "exit-code" if unit.is_failed else "success",
        "Id": name,
        "LoadState": load_state,
        "ActiveState": unit.state.value,
        "SubState": unit.sub_state,
        "FragmentPath": path,
        "UnitFileState": file_state,
    }


def render_status(name: str, unit: Unit) -> str:
    signs = {ActiveState.ACTIVE: "●", ActiveState.INACTIVE: "○", ActiveState.FAILED: "\u00d7"}
    description = next(iter(settings(unit.text, "Description")[-1:]), name)
    title = name if description == name else f"{name} - {description}"
    details = {
        ActiveState.FAILED: "failed (Result: exit-code)",
        ActiveState.ACTIVE: f"active ({unit.sub_state})",
        ActiveState.INACTIVE: "inactive (dead)",
    }[unit.state]
    since = " since Thu 2026-01-01 00:00:00 UTC; 1s ago" if unit.was_active else ""
    preset = "; preset: enabled" if link_folders(unit.text) else ""
    return (
        f"{signs[unit.state]} {title}\n"
        f"     Loaded: loaded ({unit.folder}/{name}; {unit.file_state}{preset})\n"
        f"     Active: {details}{since}\n"
    )
