"""Coverage, notes and refusals that workers send at their end are merged in the controller."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from harness.plugin.specs.hooks import (
    _REFUSAL,
    pytest_addoption,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from harness.plugin.specs.runs import hits_of, notes_of
from harness.shell.coverage import Place, Tier


def a_config(**fields: Any) -> Any:
    return SimpleNamespace(stash=pytest.Stash(), getoption=lambda _name: [], **fields)


def a_worker(note: str, place: Place, refusal: str = "") -> dict[str, Any]:
    """Return what a worker sends at its end."""
    config = a_config(workeroutput={})
    notes_of(config).add(note)
    for tier in Tier:
        hits_of(config, tier)[f"{tier.name}.sh"] = {place}
    if refusal:
        config.stash[_REFUSAL] = refusal
    session: Any = SimpleNamespace(config=config, exitstatus=0)
    pytest_sessionfinish(session)
    assert session.exitstatus == (pytest.ExitCode.USAGE_ERROR if refusal else 0)
    output: dict[str, Any] = config.workeroutput
    return output


def test_coverage_and_notes_and_refusals_of_xdist_workers_are_merged() -> None:
    for refusing in (None, 0, 1):
        config = a_config()
        for number in range(2):
            refusal = "no namespaces" if number == refusing else ""
            output = a_worker(f"note {number}", Place(number, 7, 1), refusal)
            node: Any = SimpleNamespace(config=config, workeroutput=output)
            pytest_testnodedown(node)
        crashed: Any = SimpleNamespace(config=config)
        pytest_testnodedown(crashed)

        for tier in Tier:
            assert hits_of(config, tier) == {f"{tier.name}.sh": {Place(0, 7, 1), Place(1, 7, 1)}}
        session: Any = SimpleNamespace(config=config, exitstatus=0)
        pytest_sessionfinish(session)
        lines: list[str] = []
        terminal: Any = SimpleNamespace(
            config=config, stats={}, write_line=lambda line, to=lines, **_: to.append(line)
        )
        pytest_terminal_summary(terminal)

        is_refused = refusing is not None
        assert session.exitstatus == (pytest.ExitCode.USAGE_ERROR if is_refused else 0)
        assert lines == [*["no namespaces"] * is_refused, "note 0", "note 1"]


def test_failed_write_of_the_coverage_file_gives_a_usage_error_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_config: object) -> NoReturn:
        raise IsADirectoryError(21, "Is a directory", "out")

    monkeypatch.setattr("harness.plugin.specs.hooks._write_coverage", fail)
    config = SimpleNamespace(stash=pytest.Stash(), getoption=lambda _name: ["a.sh"])
    session: Any = SimpleNamespace(config=config, exitstatus=0)

    pytest_sessionfinish(session)

    assert session.exitstatus == pytest.ExitCode.USAGE_ERROR
    said = "The coverage can't be written: [Errno 21] Is a directory: 'out'"
    assert config.stash[_REFUSAL] == said


def test_shell_timeout_option_must_be_greater_than_0() -> None:
    for word in ("0", "-1", "nan"):
        parser = pytest.Parser(_ispytest=True)
        pytest_addoption(parser)

        with pytest.raises(
            pytest.UsageError, match=f"--shell-timeout: '{word}' is not a time limit"
        ):
            parser.parse([f"--shell-timeout={word}"])
        assert parser.parse(["--shell-timeout=inf"]).shell_timeout == math.inf
