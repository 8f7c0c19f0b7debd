"""Plants bugs from unified diffs, each in a copy of the tree, and finds the tier that catches each."""

from __future__ import annotations

import ast
import enum
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.mutate.project_copy import Project
from harness.provisioning.command import LocalRunner

from .machine_runner import MachineRunner
from .mutant_runner import PlantError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.provisioning.command import CommandResult, Runner

_GIT_S = 120.0
_HOUR_S = 3600.0
#: The folders of tests and of the data that tests read. A patch must not change them; `fixtures`
#: itself is part of the product.
_NOT_BUGS = ("suites", "fixtures/data")


class Tier(enum.Enum):
    """A tier of tests: its name, the folder of its tests, and the time limit of the tests in seconds."""

    UNIT = ("unit", "suites/unit", _HOUR_S)
    HOST = ("host", "suites/host", 2 * _HOUR_S)
    MACHINE = ("machine", "suites/e2e", 8 * _HOUR_S)

    def __init__(self, word: str, folder: str, limit_s: float) -> None:
        self.word = word
        self.folder = folder
        self.limit_s = limit_s

    @classmethod
    def of_word(cls, word: str) -> Tier:
        """Return the tier with a name; raises BadInputError for a name that no tier has."""
        for tier in cls:
            if tier.word == word:
                return tier
        words = ", ".join(tier.word for tier in cls)
        raise BadInputError(f"There is no tier '{word}'; the tiers are {words}.", source="--tier")

    @classmethod
    def of_test(cls, test: str) -> Tier:
        """Return the tier of a test's path; raises BadInputError for a path that is in no tier."""
        for tier in cls:
            if f"{test}/".startswith(f"{tier.folder}/"):
                return tier
        folders = ", ".join(f"'{tier.folder}'" for tier in cls)
        raise BadInputError(f"'{test}' is not below {folders}.", source="--tests")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The tests of a tier that run: the tests at the paths `tests`, or all if `tests` is empty."""

    tier: Tier
    tests: tuple[str, ...] = ()

    def runs(self, top: Path, changed: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yield the arguments of each run of pytest: the tests that mirror changed files run first."""
        if self.tests:
            yield self.tests
            return
        near = sorted({path for each in changed if (path := self._nearest(top, each)) is not None})
        if near:
            yield tuple(near)
        yield (self.tier.folder, *(f"--ignore={path}" for path in near))

    def _nearest(self, top: Path, changed: str) -> str | None:
        """Return the folder, or the file, of tests that mirrors a changed file."""
        path = PurePosixPath(changed).with_suffix("")
        parts = path.parts[1:] if path.parts[0] == "harness" else path.parts
        for number in range(len(parts), 0, -1):
            folder = PurePosixPath(self.tier.folder, *parts[:number])
            for near in (folder, folder.with_name(f"test_{folder.name}.py")):
                if (top / near).exists():
                    return str(near)
        return None


def select(tiers: Sequence[str], tests: Sequence[str]) -> tuple[Selection, ...]:
    """Return the selections of these tiers, or of the tiers of `tests`, with cheap tiers first.

    Without tiers and tests, the unit tier and the host tier are selected. Raises BadInputError for
    an unknown tier, and for a test whose tier is not in `tiers`.
    """
    named: dict[Tier, tuple[str, ...]] = {}
    for test in tests:
        tier = Tier.of_test(test)
        named[tier] = (*named.get(tier, ()), test)
    wanted = {Tier.of_word(word) for each in tiers for word in each.split(",")}
    if wanted and (other := set(named) - wanted):
        test = named[other.pop()][0]
        raise BadInputError(f"'{test}' is in no tier that '--tier' names.", source="--tests")
    wanted = wanted or set(named) or {Tier.UNIT, Tier.HOST}
    return tuple(
        Selection(tier=tier, tests=named.get(tier, ())) for tier in Tier if tier in wanted
    )


def find_patches(files: Sequence[Path]) -> list[Path]:
    """Return the patches at these paths; a folder means its files that end in .patch or .diff.

    Raises BadInputError for a path without a patch.
    """
    found: list[Path] = []
    for path in files:
        inside = sorted(each for each in path.glob("*") if each.suffix in (".patch", ".diff"))
        if path.is_dir() and not inside:
            raise BadInputError(
                "The folder has no file that ends in '.patch' or '.diff'.", source=str(path)
            )
        if not path.exists():
            raise BadInputError("There is no such patch.", source=str(path))
        found += inside if path.is_dir() else [path]
    return [path.resolve() for path in dict.fromkeys(found)]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result for a planted bug: the tier and the test that caught it, or why the result is unknown."""

    patch: str
    changed: tuple[str, ...]
    failure: tuple[Tier, str] | None = None
    trouble: str | None = None

    @property
    def verdict(self) -> str:
        if self.trouble is not None:
            return "unknown"
        return "survived" if self.failure is None else "caught"

    def render(self) -> str:
        shown = self.verdict.upper()
        if self.failure is not None:
            tier, test = self.failure
            shown = f"caught by {tier.word}: {test}"
        elif self.trouble is not None:
            shown += f": {self.trouble}"
        return f"{self.patch}  [{', '.join(self.changed)}]\n    {shown}\n"

    def to_json(self) -> dict[str, object]:
        tier, test = (None, None) if self.failure is None else self.failure
        return {
            "patch": self.patch,
            "changed": self.changed,
            "verdict": self.verdict,
            "tier": None if tier is None else tier.word,
            "test": test,
            "trouble": self.trouble,
        }


@dataclass(frozen=True, kw_only=True)
class PatchPlan:
    """The work of `plant_patches`: the patches, the tests, and how many patches run at the same time."""

    patches: tuple[Path, ...]
    selections: tuple[Selection, ...]
    image: str
    children: int
    new_bake: bool = False


class PatchRunner:
    """Applies patches to a copy of a repository and runs tests there."""

    def __init__(self, top: Path, runner: Runner | None = None) -> None:
        self.top = top
        self._runner = runner or LocalRunner()
        self._tests = MachineRunner(top, self._runner)

    def _git_apply(self, patch: Path, *options: str) -> CommandResult:
        # git must not find a repository around the copy, since it would take paths as relative to
        # that repository.
        environment = {"GIT_CEILING_DIRECTORIES": str(self.top.parent), "LC_ALL": "C"}
        argv = ("git", "-C", str(self.top), "apply", *options, str(patch))
        return self._runner.run(argv, timeout_s=_GIT_S, env=environment)

    def plant(self, patch: Path) -> tuple[str, ...]:
        """Apply a patch; return the paths of the changed files.

        Raises BadInputError for a patch that does not apply, changes tests, or leaves a file that
        is not valid Python.
        """
        applied = self._git_apply(patch, "--numstat", "-z", "--apply")
        if not applied.ok:
            raise BadInputError(
                f"The patch does not apply to this tree: {applied.stderr.strip()}",
                source=str(patch),
            )
        rows = [row.split("\t") for row in applied.stdout.split("\0")]
        changed = tuple(row[2] for row in rows if len(row) == 3)
        for name in changed:
            self._check_changed(patch, name)
        return changed

    def _check_changed(self, patch: Path, name: str) -> None:
        if any(PurePosixPath(name).is_relative_to(folder) for folder in _NOT_BUGS):
            raise BadInputError(
                f"The patch changes '{name}'. A planted bug must be in the product, not in its tests.",
                source=str(patch),
            )
        path = self.top / name
        if path.suffix == ".py" and path.exists():
            try:
                ast.parse(path.read_bytes())
            except SyntaxError as error:
                raise BadInputError(
                    f"With the patch, '{name}' is not valid Python: {error.msg}, line {error.lineno}.",
                    source=str(patch),
                ) from None

    def first_failure(
        self, plan: PatchPlan, changed: Sequence[str] = (), *, bake: bool
    ) -> tuple[Tier, str] | None:
        """Return the test that fails first, with its tier, or None if all pass."""
        for selection in plan.selections:
            options = ["-n0"]
            if selection.tier is Tier.MACHINE:
                options.append(f"--image={plan.image}")
                if not bake:
                    self._tests.pin_bake()
            self._tests.limit_s = selection.tier.limit_s
            for tests in selection.runs(self.top, changed):
                failed = self._tests.try_suite(*tests, *options)
                if failed is not None:
                    return selection.tier, failed
        return None


def plant_patches(repository: Path, plan: PatchPlan, *, as_json: bool) -> int:
    """Plant each patch in a copy, and print which test caught it.

    First, each patch is applied as a trial, and every tier runs without a bug. Returns 0 if all
    bugs were caught, 1 if a bug survived, and 2 if a result is unknown.
    """
    project = Project(repository, ())
    files = project.files()

    @contextmanager
    def copy() -> Iterator[PatchRunner]:
        with TemporaryDirectory(prefix="plant-", ignore_cleanup_errors=True) as folder:
            yield PatchRunner(project.copy(files, Path(folder)))

    def fault_of(patch: Path) -> str | None:
        with copy() as runner:
            try:
                runner.plant(patch)
            except BadInputError as error:
                return str(error)
        return None

    def run(patch: Path) -> Finding:
        with copy() as runner:
            changed = runner.plant(patch)
            failure, trouble = None, None
            try:
                failure = runner.first_failure(plan, changed, bake=plan.new_bake)
            except PlantError as error:
                trouble = str(error)
        finding = Finding(patch=patch.name, changed=changed, failure=failure, trouble=trouble)
        # All patches together take long, so each verdict is shown as soon as it is known.
        (sys.stderr if as_json else sys.stdout).write(finding.render())
        sys.stdout.flush()
        return finding

    faults = [fault for patch in plan.patches if (fault := fault_of(patch)) is not None]
    if faults:
        raise PlantError("\n".join(faults))
    with copy() as runner:
        failure = runner.first_failure(plan, bake=True)
    if failure is not None:
        raise PlantError(f"'{failure[1]}' fails without a planted bug. Repair it first.")
    with ThreadPoolExecutor(plan.children) as pool:
        findings = list(pool.map(run, plan.patches))
    return report(findings, as_json=as_json)


def report(findings: Sequence[Finding], *, as_json: bool) -> int:
    """Print how many bugs were caught, or all findings as JSON; return the exit status."""
    verdicts = [finding.verdict for finding in findings]
    counts = {word: verdicts.count(word) for word in ("caught", "survived", "unknown")}
    if as_json:
        rows = [finding.to_json() for finding in findings]
        sys.stdout.write(json.dumps({"patches": rows, **counts}, indent=2) + "\n")
    else:
        sys.stdout.write(f"{counts['caught']} of {len(findings)} caught\n")
    return 2 if counts["unknown"] else int(counts["survived"] > 0)
