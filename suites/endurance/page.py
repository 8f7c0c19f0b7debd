"""Writes `docs/reliability.md` from the summaries in `summaries/`: `python -m suites.endurance.page`.

To add a run to the page, move its summary from `evidence/endurance` into `summaries/`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suites.endurance.campaigns import CAMPAIGNS, MIX
from suites.endurance.faults import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from suites.endurance.faults import Fault

SUMMARIES = Path(__file__).with_name("summaries")
PAGE = Path(__file__).parents[2] / "docs/reliability.md"

#: If more cases were not tried, the page has their number and not their names.
_MOST_NAMED = 20

_HEAD = """\
# Reliability

A campaign injects faults into the harness. A *case* is one operation with one kind of fault, and a *try* is one
run of a case. After each try, the campaign checks whether the harness kept its promise. This page lists the runs
whose summaries are in the repository; `python -m suites.endurance.page` generates it from the summaries.

`./dev endure CAMPAIGN --minutes=60` runs a campaign for an hour. This is enough for all cases of a campaign, except for
*load* and *flakes*.
`./dev endure mix` runs {mix}, each for an equal part of five minutes.
This is enough for a few cases. CI runs this command.
A random seed decides the order of the cases. Each run has a new seed and prints it; to repeat the order of a run,
pass its seed: `./dev endure mix --seed=51`. The exit status is 1 if a promise was broken.

All campaigns except *load* and *flakes* run in separate namespaces, with a `/tmp` in memory and without a network,
so that a campaign sees everything that a try leaves behind. For this, root must run the campaign, or the host must
allow users to make namespaces.

The campaigns *load* and *flakes* divide the tests that CI selects into 24 parts; each try runs one part.

In the campaign *time*, a preloaded library shifts the clock of a process and slows its disk accesses. The kernel's
clock, from which files get their times, is not changed.

These operations and conditions were not tried so far: a VFIO binding, a bake, a build by mmdebstrap, checkpoints of
whole guests, runs of several users at the same time.

## Campaigns
"""


def render(summaries: Iterable[dict[str, Any]], faults: Sequence[Fault]) -> str:
    """Return the page."""
    by_name: dict[str, list[dict[str, Any]]] = {name: [] for name in CAMPAIGNS}
    for summary in summaries:
        by_name[summary["campaign"]].append(summary)
    parts = [_HEAD.format(mix=_listed(MIX))]
    for name, campaign in CAMPAIGNS.items():
        parts.append(f"### {name}\n\n{campaign.promise}\n")
        parts.append(_runs(by_name[name]))
        parts.append(_faults([each for each in faults if each.campaign == name]))
    return "\n".join(part for part in parts if part)


def _runs(runs: Sequence[dict[str, Any]]) -> str:
    if not runs:
        return "No run of this campaign was completed so far.\n"
    lines = ["| Seed | Minutes | Tries | Broken promises |", "|---|---|---|---|"]
    lines += [
        f"| {each['seed']} | {each['minutes']} | {sum(each['tries'].values())} | {len(each['found'])} |"
        for each in sorted(runs, key=lambda each: int(each["seed"]))
    ]
    totals: dict[str, int] = {}
    for each in runs:
        for case, count in each["tries"].items():
            totals[case] = totals.get(case, 0) + count
    tried = "; ".join(f"{case}: {count}" for case, count in sorted(totals.items()) if count)
    lines += ["", f"Tries by case: {tried}.\n"]
    # Earlier runs may have had fewer cases, such as larger parts of the tests.
    cases = max((each["tries"] for each in runs), key=len)
    missing = sorted(case for case in cases if not totals[case])
    if len(missing) > _MOST_NAMED:
        lines.append(f"{len(missing)} of {len(cases)} cases were not tried so far.\n")
    elif missing:
        lines.append(f"Cases not tried so far: {'; '.join(missing)}.\n")
    return "\n".join(lines)


def _faults(faults: Sequence[Fault]) -> str:
    lines = []
    for each in faults:
        if each.test is not None:
            lines.append(f"* Found and fixed: {each.what}. The regression test is `{each.test}`.")
        else:
            lines.append(f"* Found and not fixed: {each.what}. {each.why}")
    return "\n".join([*lines, ""]) if lines else ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"*{name}*" for name in names[:-1]) + f" and *{names[-1]}*"


def read_summaries() -> list[dict[str, Any]]:
    """Return the summaries in the repository."""
    return [json.loads(file.read_text()) for file in sorted(SUMMARIES.glob("*.json"))]


if __name__ == "__main__":
    PAGE.write_text(render(read_summaries(), FAULTS))
