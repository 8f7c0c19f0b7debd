"""Spec files, their groups and examples, as pytest collects and runs them."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from string import Template
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from harness.errors import BadInputError, HarnessError, RequirementError
from harness.plugin.specs.runs import runs_of
from harness.plugin.specs.selection import selection_of
from harness.shell.mocks.lookups import looked_up_in_file
from harness.shell.process import ShellCommandRunner
from harness.shell.spec.parameter_rows import ShellRowEvaluator
from harness.shell.spec.project import Project, project_variables
from harness.shell.spec.translate import translate
from harness.shell.spec.verdict import Outcome
from harness.visible_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from _pytest._code.code import TerminalRepr

    from harness.shell.spec.spec_file import Case, Group, SpecFile
    from harness.shell.spec.verdict import Verdict


JOBS_SECTION = "Captured jobs call"
"""The title of the report section that names the processes that an example left running."""


class SpecFileCollector(pytest.File):
    """A spec file."""

    spec: SpecFile
    project: Project
    chosen: set[int] | None = None
    """`Case.number` of each example that the command line names; None if the whole file runs."""

    @override
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        self.project = Project.of(self.path, self.config.invocation_params.dir)
        source = self.shown_path
        try:
            text = self.path.read_bytes().decode(errors="surrogateescape")
        except OSError as error:
            raise BadInputError(f"The spec can't be read: {error}.", source=source) from error
        shell = self.project.options.shell
        if shell.is_posix and self.config.getoption("--shell-cov"):
            raise RequirementError(
                f"'--shell-cov' records lines that bash runs, but '{self.project.root}/.shellspec' "
                f"asks for '{shell.text}'; leave out '--shell-cov' or change the shell."
            )
        evaluate = ShellRowEvaluator(
            ShellCommandRunner(),
            lambda: runs_of(self.config).sandbox,
            source=source,
            cwd=self.project.exec_dir(self.path),
            env=project_variables(self.project, self.path),
            shell=shell,
        )
        self.spec = translate(source, text, evaluate, shell=shell, lookups_of=self._lookups_of)
        tree = _Tree()
        for case in self.spec.cases:
            tree.add(case)
        selection = selection_of(self.config, self.path)
        if selection is not None:
            self.chosen = selection.chosen(dict(tree.cases()), source)
        yield from _make_nodes(self, self, tree)

    def _lookups_of(self, word: str) -> frozenset[str]:
        path = Template(word).safe_substitute(project_variables(self.project, self.path))
        return looked_up_in_file(self.project.exec_dir(self.path) / path)

    @override
    def repr_failure(  # type: ignore[override]  # as narrow as pytest's own collectors'
        self, excinfo: pytest.ExceptionInfo[BaseException]
    ) -> str | TerminalRepr:
        """Show the error in the spec without a traceback of the harness."""
        if isinstance(excinfo.value, HarnessError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    @functools.cached_property
    def shown_path(self) -> str:
        root = self.config.rootpath
        inside = self.path.is_relative_to(root)
        return str(self.path.relative_to(root) if inside else self.path)


class GroupCollector(pytest.Collector):
    """A group of examples: a `Describe` or `Context` block."""

    tree: _Tree
    file: SpecFileCollector

    @override
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        yield from _make_nodes(self, self.file, self.tree)


class _Tree:
    """The examples and subgroups of one group, in order."""

    def __init__(self) -> None:
        self.entries: list[tuple[Group, _Tree] | Case] = []

    def add(self, case: Case) -> None:
        tree = self
        for group in case.groups:
            last = tree.entries[-1] if tree.entries else None
            if isinstance(last, tuple) and last[0] is group:
                tree = last[1]
            else:
                below = _Tree()
                tree.entries.append((group, below))
                tree = below
        tree.entries.append(case)

    def named(self) -> Iterator[tuple[str, tuple[Group, _Tree] | Case]]:
        """Yield the members of the group, each with a unique name."""
        names: dict[str, int] = {}
        for entry in self.entries:
            block = entry[0] if isinstance(entry, tuple) else entry
            name = visible(block.name).replace("::", ": :") or "<unnamed>"
            names[name] = names.get(name, 0) + 1
            yield name if names[name] == 1 else f"{name} <line {block.begin}>", entry

    def cases(self) -> Iterator[tuple[str, Case]]:
        """Yield each example of this group and of its subgroups, with its id relative to this group."""
        for name, entry in self.named():
            if isinstance(entry, tuple):
                yield from ((f"{name}::{id_}", case) for id_, case in entry[1].cases())
            else:
                yield name, entry


def _make_nodes(
    parent: SpecFileCollector | GroupCollector, file: SpecFileCollector, tree: _Tree
) -> Iterator[pytest.Item | pytest.Collector]:
    for name, entry in tree.named():
        if isinstance(entry, tuple):
            collector: GroupCollector = GroupCollector.from_parent(parent, name=name)
            collector.tree, collector.file = entry[1], file
            yield collector
        elif file.chosen is None or entry.number in file.chosen:
            yield SpecItem.from_parent(parent, name=name, case=entry, file=file)


class SpecItem(pytest.Item):
    """An example, or a parametrised example with one row of its parameters."""

    def __init__(
        self, *, name: str, parent: pytest.Collector, case: Case, file: SpecFileCollector
    ) -> None:
        super().__init__(name, parent)
        self.case = case
        self.file = file
        tags = case.all_tags
        if tags:
            self.extra_keyword_matches.update(tags)

    def is_wanted(self, tags: set[str], focus: bool) -> bool:
        """Return whether the selection of the command line and of `.shellspec` includes this example.

        As in shellspec, filters by tag or name do not exclude a focused example. A tag without a
        value selects all values of the tag.
        """
        options = self.file.project.options
        tags = tags | set(options.tags)
        if self.case.is_focused and (tags or options.examples or focus or options.focus):
            return True
        if focus or options.focus:
            return False
        own = {part for tag in self.case.all_tags for part in (tag, tag.partition(":")[0])}
        if tags and not tags & own:
            return False
        names = [self.case.name, *(group.name for group in self.case.groups)]
        patterns = "|".join(options.examples).split("|")
        return not options.examples or any(
            fnmatchcase(name, pattern) for name in names for pattern in patterns
        )

    @override
    def runtest(self) -> None:
        verdict = runs_of(self.config).run(self.file, self.case)
        self.note_jobs(verdict)
        raise_for(self, verdict)

    def note_jobs(self, verdict: Verdict) -> None:
        """Add to the example's report the names of the processes that the example left running."""
        if verdict.running is not None:
            self.add_report_section("call", "jobs", visible(verdict.running.render()))

    @override
    def teardown(self) -> None:
        problems = runs_of(self.config).take_late_problems()
        if problems:
            text = "\n\n".join(problem.text for problem in problems)
            pytest.fail(visible(text), pytrace=False)

    @override
    def repr_failure(  # type: ignore[override]  # as narrow as pytest's own items'
        self, excinfo: pytest.ExceptionInfo[BaseException]
    ) -> str | TerminalRepr:
        """Show which requirement this host lacks, without a traceback of the harness."""
        if isinstance(excinfo.value, HarnessError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    @functools.cached_property
    @override
    def location(self) -> tuple[str, int | None, str]:
        """Return the example's location in reports; pytest's own method is as slow as running an example."""
        name = visible(self.case.full_name)
        return self.file.shown_path, self.case.begin - 1, name

    @override
    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.case.begin - 1, visible(self.case.full_name)


def in_file_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the items with each spec file's examples next to each other, in the file's order.

    All examples of a file move to the position of the file's first example.
    """
    of_file: dict[SpecFileCollector, list[SpecItem]] = {}
    for item in items:
        if isinstance(item, SpecItem):
            of_file.setdefault(item.file, []).append(item)
    ordered: list[pytest.Item] = []
    for item in items:
        if not isinstance(item, SpecItem):
            ordered.append(item)
        elif item.file in of_file:
            examples = of_file.pop(item.file)
            examples.sort(key=lambda example: example.case.number)
            ordered += examples
    return ordered


def raise_for(item: SpecItem, verdict: Verdict) -> None:
    """Raise pytest's exception for a skipped, pending or failed verdict; return if the example passed."""
    outcome = verdict.outcome
    if outcome is Outcome.SKIPPED:
        pytest.skip(visible(verdict.reason))
    if outcome is Outcome.PENDING:
        pytest.xfail(visible(verdict.reason))
    if not outcome.fails:
        return
    if outcome is Outcome.WARNED and not item.file.project.options.warning_as_failure:
        return
    if outcome is Outcome.WARNED and item.config.getoption("--no-warning-as-failure"):
        return
    pytest.fail(visible(verdict.render(item.file.spec, item.case)), pytrace=False)
