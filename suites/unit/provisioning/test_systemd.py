"""Commands that start, enqueue and stop units."""

from __future__ import annotations

import re

from harness.provisioning.command import CommandResult
from harness.provisioning.systemd import (
    enqueue,
    read_environment,
    render_assignment,
    reset_failed,
    says_loaded,
    start,
    stop,
    where_loaded,
)
from suites.unit.provisioning.fakes import plan_lines


def test_start_reloads_systemd_and_restarts_and_enables_the_unit() -> None:
    assert plan_lines(*start("kubelet", 240)) == [
        "systemctl daemon-reload  # limit 25 s; failure ignored",
        "systemctl restart kubelet  # 100 attempts, 5 s apart, limit 240 s each",
        "systemctl enable kubelet  # 120 attempts, 5 s apart, limit 25 s each",
    ]


def test_failure_to_enqueue_or_stop_or_reset_a_unit_is_ignored() -> None:
    actions = enqueue("nvidia-dcgm", 30, "warning: no")

    assert plan_lines(*actions) == [
        "systemctl daemon-reload  # limit 25 s; failure ignored",
        "systemctl restart --no-block nvidia-dcgm  # limit 30 s; failure ignored",
        "systemctl enable nvidia-dcgm  # limit 25 s; failure ignored",
    ]
    assert [action.warning for action in actions] == [None, "warning: no", None]
    assert plan_lines(*stop("kubelet"), reset_failed("a.service", "a.path")) == [
        "systemctl stop kubelet  # 20 attempts, 5 s apart, limit 25 s each; failure ignored",
        "systemctl disable kubelet  # 20 attempts, 5 s apart, limit 25 s each; failure ignored",
        "systemctl reset-failed a.service a.path  # limit 25 s; failure ignored",
    ]


def test_existence_of_a_unit_is_queried_before_the_unit_is_changed() -> None:
    when = where_loaded("a", *stop("a"))

    assert plan_lines(when)[:2] == [
        "systemctl show --property=LoadState --value a  # limit 30 s",
        "if the unit a exists:",
    ]
    assert when.otherwise == "There is no unit a."
    assert when.then == stop("a")


def test_unit_exists_only_if_systemctl_succeeds_and_prints_loaded() -> None:
    rows = {
        ("loaded\n", 0): True,
        ("not-found\n", 0): False,
        ("masked\n", 0): False,
        ("loaded", 1): False,
    }

    for (stdout, exit_code), is_loaded in rows.items():
        result = CommandResult(argv=(), exit_code=exit_code, stdout=stdout, stderr="")

        assert says_loaded(result) is is_loaded, stdout
        assert where_loaded("a").is_met(result) is is_loaded, stdout


def test_variable_has_the_same_value_for_systemd_and_for_a_shell() -> None:
    for value in (
        "",
        "a=b,c",
        "a  b ",
        'a"b',
        "a'b",
        "$HOME",
        "`id`",
        "a\\ b",
        "a\\",
        "#",
        "a\nB=3",
    ):
        line = render_assignment("A", value)

        read = [(each.name, each.value) for each in read_environment(f"X=1\n{line}\nY=2\n")]
        assert read == [("X", "1"), ("A", value), ("Y", "2")]
        # A shell expands nothing in the line, and the quotes end at the end of the line.
        assert re.fullmatch(r'A=([a-z=,]*|"([^"\\$`]|\\["\\$`])*")', line), value
