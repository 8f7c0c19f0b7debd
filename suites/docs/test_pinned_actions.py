"""Workflows pin foreign actions to a commit, since a tag can move; a comment names the release."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from suites.docs.pages import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FOLDERS = (".github", "docs/ci", "harness/cli/new_project/.github")
_PINNED = re.compile(r"\S+@[0-9a-f]{40}|docker://\S+@sha256:[0-9a-f]{64}")
_OWN = "./"
_CHECKOUT = "actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683"


def _workflows() -> list[Path]:
    return sorted(
        file
        for folder in _FOLDERS
        for file in (REPOSITORY / folder).rglob("*")
        if file.suffix in {".yml", ".yaml"}
    )


def actions_of(node: Any) -> Iterator[str]:
    """Yield the action or the workflow of every `uses` in a document, in order."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "uses" and isinstance(value, str):
                yield value
            else:
                yield from actions_of(value)
    elif isinstance(node, list):
        for value in node:
            yield from actions_of(value)


def unpinned(text: str) -> list[str]:
    """Return the actions of a workflow that are not pinned, or whose comment names no release."""
    found = [action for action in actions_of(yaml.safe_load(text)) if not action.startswith(_OWN)]
    return [
        action
        for action in found
        if not _PINNED.fullmatch(action)
        or not re.search(rf"{re.escape(action)}[\"']? +# v\d+(\.\d+)+$", text, re.MULTILINE)
    ]


def test_every_action_of_another_repository_is_pinned_and_has_its_release_in_a_comment() -> None:
    loose = {
        str(file.relative_to(REPOSITORY)): unpinned(file.read_text()) for file in _workflows()
    }

    assert "docs/ci/github-kvm.yml" in loose
    assert ".github/workflows/test.yml" in loose
    assert "harness/cli/new_project/.github/workflows/gpu-nodes.yml" in loose
    assert {file: actions for file, actions in loose.items() if actions} == {}


def test_all_workflows_pin_an_action_to_the_same_commit() -> None:
    commits: dict[str, set[str]] = {}
    for file in _workflows():
        for action in actions_of(yaml.safe_load(file.read_text())):
            name, _, commit = action.partition("@")
            commits.setdefault(name, set()).add(commit)

    assert {name: found for name, found in commits.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    "step",
    [
        "uses: actions/checkout@v4",
        "{uses: 'actions/checkout@v4.2.2'}",
        "uses: actions/checkout@main # v4.2.2",
        "uses: actions/checkout",
        "uses: actions/checkout@11bd719 # v4.2.2",
        f"uses: {_CHECKOUT}",
        f"uses: {_CHECKOUT} # the newest",
        "uses: docker://debian:12 # v12.1",
    ],
)
def test_unpinned_action_is_refused(step: str) -> None:
    assert unpinned(f"jobs:\n  test:\n    steps:\n      - {step}\n") != []


def test_unpinned_workflow_of_another_repository_is_refused() -> None:
    assert unpinned("jobs:\n  test:\n    uses: other/ci/.github/workflows/test.yml@v1\n") != []


def test_pinned_actions_and_local_actions_are_accepted() -> None:
    steps = f"      - uses: {_CHECKOUT} # v4.2.2\n      - uses: ./.github/actions/kvm\n"

    assert unpinned(f"jobs:\n  test:\n    steps:\n{steps}") == []
