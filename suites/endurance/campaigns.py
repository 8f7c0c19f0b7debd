"""The table of campaigns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suites.endurance.crash import Crash
from suites.endurance.many import Many
from suites.endurance.resources import Resources
from suites.endurance.suite_runs import Flakes, Hostile, Load
from suites.endurance.time_faults import Time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suites.endurance.campaign import Campaign

CAMPAIGNS: Mapping[str, Campaign] = {
    "crash": Crash(),
    "resources": Resources(),
    "many": Many(),
    "hostile": Hostile(),
    "time": Time(),
    "load": Load(),
    "flakes": Flakes(),
}
#: The campaigns that `mix` runs, each for the same time: they need no network and no image.
MIX = ("crash", "resources", "many", "hostile")
