"""What campaigns found so far, and the test that holds each fault since it was mended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A broken promise, for `docs/reliability.md`.

    `test` is the node id of the test that fails without the mending; None if the fault is left, and `why`
    then says why.
    """

    campaign: str
    what: str
    test: str | None = None
    why: str = ""


FAULTS = (
    Fault(
        campaign="crash",
        what="the file that names the holder of a killed process's lock stayed in the cache",
        test="suites/unit/artifact_cache/test_store.py::test_next_run_removes_leftovers_of_a_killed_one_in_any_folder",
    ),
    Fault(
        campaign="resources",
        what="unfinished files of a killed process stayed in a cache until the same was made again, or `gc` ran",
        test="suites/unit/artifact_cache/test_store.py::test_next_run_removes_leftovers_of_a_killed_one_in_any_folder",
    ),
    Fault(
        campaign="resources",
        what="an error in the removal of a staging folder hid the error before it, or failed a sound result",
        test="suites/unit/artifact_cache/test_store.py::test_error_of_a_folder_is_not_hidden_by_an_error_of_its_removal",
    ),
    Fault(
        campaign="resources",
        what="a command without memory, or without a thread left, ended with a traceback",
        test="suites/unit/cli/test_cli.py::test_lack_of_memory_or_threads_is_reported_in_a_sentence",
    ),
    Fault(
        campaign="resources",
        what="a command that had no memory left for a compiled module that it loads late ended with a traceback",
        test="suites/unit/cli/test_cli.py::test_lack_of_memory_or_threads_is_reported_in_a_sentence",
    ),
    Fault(
        campaign="resources",
        what="a command that has no memory left while Python loads its first modules ends with a traceback",
        why="It ends with `MemoryError`, or with `failed to map segment`; the harness has not begun by then.",
    ),
    Fault(
        campaign="resources",
        what="pytest, its workers or Allure's plugin end with a traceback where they have no descriptor left",
        why="It names the cause, and does not pass through the harness.",
    ),
    Fault(
        campaign="resources",
        what="a run with workers that has no memory left while xdist starts them waits for them without end",
        why="execnet, and pytest-rerunfailures, wait for the other side's answer without a time limit. "
        "Such runs are not tried with short memory.",
    ),
    Fault(
        campaign="resources",
        what="pytest's session ended with an internal error where JUnit's file could be neither written nor removed",
        test="suites/host/plugin/test_hostile_reports.py::test_folder_of_reports_that_is_gone_is_reported_in_a_sentence",
    ),
    Fault(
        campaign="resources",
        what="the folder of an unpacked bundle, whose removal lacked a descriptor, stayed until `gc` ran",
        test="suites/host/evidence/test_archive.py::test_folder_that_a_killed_process_unpacked_is_removed_by_the_next",
    ),
    Fault(
        campaign="time",
        what="a shard's seconds were wrong, or below zero, where the clock was set during its run",
        test="suites/unit/plugin/test_shards.py::test_shard_record_has_ended_tests_and_their_durations",
    ),
    Fault(
        campaign="crash",
        what="the folder of a killed run's progress, and others for temporary files, stayed until the host's own cleaning",
        test="suites/unit/test_lease.py::test_temporary_folder_removes_leftovers_of_killed_processes",
    ),
    Fault(
        campaign="crash",
        what="the campaign took the reports of a killed run, which stay for whoever looks for the cause, for leftovers",
        test="suites/unit/endurance/test_operations.py::test_reports_of_a_killed_run_are_collected",
    ),
    Fault(
        campaign="many",
        what="the campaign took the memory that Python keeps for twelve threads for growth; it did not grow after them",
        test="suites/unit/endurance/test_many.py::test_memory_is_compared_with_an_equal_number_of_machines",
    ),
    Fault(
        campaign="load",
        what="an emulated guest panicked at its start, since it missed ticks of the timer, on a host that seven other jobs kept busy",
        test="suites/unit/machine/description/test_spec.py::test_emulated_machine_trusts_its_timer",
    ),
    Fault(
        campaign="hostile",
        what="a test took the console's output for ended where a fatal message had ended its wait early",
        test="suites/host/machine/channels/test_any_console.py::test_any_bytes_are_a_match_or_an_error_message",
    ),
)
