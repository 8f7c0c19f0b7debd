"""The options of `harness bench`."""

from __future__ import annotations

import pytest

from harness.cli import main


@pytest.mark.parametrize("runs", ["0", "-1", "many"])
def test_runs_below_one_are_refused(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "clone", "--runs", runs])

    assert f"'{runs}'" in capsys.readouterr().err
