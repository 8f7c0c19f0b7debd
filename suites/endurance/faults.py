"""The faults that campaigns found so far, each with its regression test if it was fixed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A broken promise, for `docs/reliability.md`.

    `test` is the node id of the test that fails without the fix. `test` is None if the fault
    was not fixed; then `why` has the reason.
    """

    campaign: str
    what: str
    test: str | None = None
    why: str = ""


FAULTS = (
    Fault(
        campaign="crash",
        what="after a process with a lock was killed, the file with the name of the lock's holder stayed in the cache",
        test="suites/unit/artifact_cache/test_store.py::test_next_run_removes_all_leftovers_of_a_killed_run",
    ),
    Fault(
        campaign="resources",
        what="unfinished files of a killed process stayed in a cache until the same artifact was made again or `gc` ran",
        test="suites/unit/artifact_cache/test_store.py::test_next_run_removes_all_leftovers_of_a_killed_run",
    ),
    Fault(
        campaign="resources",
        what="if a staging folder could not be removed, this error hid the original error, or made a successful operation fail",
        test="suites/unit/artifact_cache/test_store.py::test_error_from_making_a_folder_is_raised_even_if_the_clean_up_fails",
    ),
    Fault(
        campaign="resources",
        what="a command that could get no more memory or threads ended with a traceback",
        test="suites/unit/cli/test_cli.py::test_lack_of_memory_or_threads_is_reported_in_a_sentence",
    ),
    Fault(
        campaign="resources",
        what="a command that imported a compiled module when no memory was left ended with a traceback",
        test="suites/unit/cli/test_cli.py::test_lack_of_memory_or_threads_is_reported_in_a_sentence",
    ),
    Fault(
        campaign="resources",
        what="if no memory or file descriptor is left while Python loads a module, a command can end with a traceback",
        why="The traceback ends with `MemoryError`, `failed to map segment` or `Too many open files`. While Python loads "
        "its first modules, no code of the harness runs that could report the error. Later, Python itself fails to "
        "report some of these errors.",
    ),
    Fault(
        campaign="resources",
        what="if no memory was left for the first connection of a process, a command ended with a traceback",
        test="suites/host/image/test_hostile_downloads.py::test_request_imports_no_further_module",
    ),
    Fault(
        campaign="resources",
        what="if the disk was full, an unfinished file stayed in the folder of a cached image or checkpoint",
        test="suites/unit/image/test_manifest.py::test_image_is_verified_again_if_the_disk_was_full_at_the_first_verification",
    ),
    Fault(
        campaign="resources",
        what="if no file descriptor is left, pytest, its workers or Allure's plugin end with a traceback",
        why="The traceback names the cause. The harness cannot catch the error, since the error does not pass through "
        "its code.",
    ),
    Fault(
        campaign="resources",
        what="if no memory is left while xdist starts its workers, pytest waits for the workers forever",
        why="execnet and pytest-rerunfailures wait for the answer of the other process without a time limit. "
        "So runs with workers are not tried with short memory.",
    ),
    Fault(
        campaign="resources",
        what="pytest ended with an internal error if the JUnit file could be neither written nor removed",
        test="suites/host/plugin/test_hostile_reports.py::test_missing_report_folder_is_reported_without_a_traceback",
    ),
    Fault(
        campaign="resources",
        what="if no file descriptor was left to remove the folder of an unpacked bundle, the folder stayed until `gc` ran",
        test="suites/host/evidence/test_archive.py::test_folder_that_a_killed_process_unpacked_is_removed_by_the_next_process",
    ),
    Fault(
        campaign="time",
        what="the recorded duration of a shard was wrong or negative if the clock was set during the run",
        test="suites/unit/plugin/test_shards.py::test_shard_record_has_ended_tests_and_their_durations",
    ),
    Fault(
        campaign="crash",
        what="the progress folder and other temporary folders of a killed run stayed until the host cleaned `/tmp`",
        test="suites/unit/test_lease.py::test_temporary_folder_removes_leftovers_of_killed_processes",
    ),
    Fault(
        campaign="crash",
        what="the campaign counted the reports of a killed run as leftovers, although the harness keeps them on purpose",
        test="suites/unit/endurance/test_operations.py::test_reports_of_a_killed_run_are_removed_when_its_results_are_collected",
    ),
    Fault(
        campaign="many",
        what="the campaign counted the memory that Python keeps for twelve threads as a leak, although this memory did not grow after that",
        test="suites/unit/endurance/test_many.py::test_memory_check_ignores_growth_from_the_number_of_simultaneous_machines",
    ),
    Fault(
        campaign="load",
        what="on a host with seven other busy jobs, an emulated guest missed ticks of its timer and panicked during its boot",
        test="suites/unit/machine/description/test_spec.py::test_kernel_of_an_emulated_machine_does_not_check_its_timer",
    ),
    Fault(
        campaign="load",
        what="`./dev demo` beside eight busy processes failed, since each `ctr version` took longer than its limit of a second",
        test="suites/unit/provisioning/test_retry.py::test_growing_time_limit_doubles_after_each_timeout_up_to_the_maximum",
    ),
    Fault(
        campaign="load",
        what="a build that took a multiple of its usual time was ended by the node's time budget, which counts time in which the host runs other work",
        test="suites/unit/lab/test_lab_parts.py::test_provisioner_gets_more_time_on_a_busy_host",
    ),
    Fault(
        campaign="load",
        what="the evidence of a well provisioned node could not be judged, since `dkms status` reached its limit of 60 seconds",
        test="suites/unit/evidence/test_collect.py::test_stretch_factor_extends_the_timeouts_of_guest_commands",
    ),
    Fault(
        campaign="load",
        what="a guest that got less than a third of a processor ended commands before the host's limit",
        test="suites/unit/machine/channels/test_agent.py::test_host_ends_a_command_at_its_limit_of_guest_time",
    ),
    Fault(
        campaign="load",
        what="beside eight busy processes, pytest-timeout ended a test whose node built its driver twice, since its limit counted the host's time",
        test="suites/host/test_time_limits.py::test_limit_ends_a_test_that_hangs",
    ),
    Fault(
        campaign="flakes",
        what="tests that follow the test of a hanging libvirtd waited in vain for the end of libvirtd, since nsenter was not continued",
        test="suites/host/libvirt/test_daemon.py::test_killed_libvirtd_can_be_started_again",
    ),
    Fault(
        campaign="flakes",
        what="tests of provisioning left their time zone to later tests of other packages",
        test="suites/host/evidence/test_bundle_commands.py::test_gc_lists_and_removes_old_bundles",
    ),
    Fault(
        campaign="flakes",
        what="in a run of CI, a wait for the end of a machine failed, since QEMU ended while its processor time was read",
        test="suites/unit/machine/test_guest_time.py::test_guest_clock_runs_like_the_host_clock_after_the_machine_has_ended",
    ),
    Fault(
        campaign="hostile",
        what="a test assumed that the console had ended, although a fatal message had only ended the wait for the console early",
        test="suites/host/machine/channels/test_any_console.py::test_wait_on_a_console_ends_with_a_match_or_an_error_for_any_bytes",
    ),
)
