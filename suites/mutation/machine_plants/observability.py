"""Defects of events, log lines, exit codes and the status."""

from __future__ import annotations

from .plant import MachinePlant, corpus, plant

PLANTS: tuple[MachinePlant, ...] = (
    corpus(20, "observability/test_status.py", "added"),
    corpus(24, "observability/test_exit_codes.py", "bake and kernel"),
    corpus(25, "observability/test_exit_codes.py", "224"),
    corpus(27, "observability/test_events.py", "record or grid"),
    corpus(28, "observability/test_events.py", "ready_node"),
    plant(
        "a run that SIGTERM ends writes no outcome",
        "__main__.py",
        (
            "signal.signal(signal.SIGTERM, signal.default_int_handler)",
            "signal.signal(signal.SIGUSR1, signal.default_int_handler)",
        ),
        "observability/test_exit_codes.py",
        "143",
    ),
    plant(
        "a run waits for a lost GPU",
        "driver_words.py",
        ("15: LOST_GPU", "-15: LOST_GPU"),
        "observability/test_exit_codes.py",
        "lost",
    ),
    plant(
        "a run does not log the node's decision",
        "__main__.py",
        ("self.node.journal.line(facts.decision.render_line())", "pass"),
        "observability/test_events.py",
        "record or grid",
    ),
    plant(
        "a node is ready without the unit that loads its driver",
        "driver.py",
        (
            '            exit_code=_FAILED,\n            needs=("restart-node-problem-detector", "validate-query"),',
            '            exit_code=None,\n            needs=("restart-node-problem-detector", "validate-query"),',
        ),
        "observability/test_exit_codes.py",
        "unit and driver",
    ),
    plant(
        "a bake continues without a compiler",
        "bake.py",
        (
            "actions=(apt_install(*BUILD_TOOLS),),\n                exit_code=ExitCode.COMMAND_FAILED,",
            "actions=(apt_install(*BUILD_TOOLS),),\n                exit_code=None,",
        ),
        "observability/test_exit_codes.py",
        "tools",
    ),
    plant(
        "output that is not UTF-8 ends a run",
        "command.py",
        ('stdout=out.decode(errors="replace"),', "stdout=out.decode(),"),
        "observability/test_exit_codes.py",
        "answer",
    ),
    plant(
        "a command runs without its own environment variables",
        "retry.py",
        ("env = dict(run.env) or None", "env = None"),
        "observability/test_exit_codes.py",
        "tools",
    ),
    plant(
        "the status fails if the tags cannot be looked up",
        "status.py",
        (
            "    except ProvisioningError as error:\n",
            "    except RecursionError as error:\n",
        ),
        "observability/test_status.py",
        "decision",
    ),
    plant(
        "a bake that fails before it builds removes an earlier bake",
        "__main__.py",
        ('if self._has_run("prepare-build"):', "if True:"),
        "observability/test_exit_codes.py",
        "bake and fails",
    ),
    plant(
        "metadata without a list of tags counts as metadata with an empty list",
        "tags.py",
        ('.get("tagsList")', '.get("tagsList", [])'),
        "observability/test_exit_codes.py",
        "without and tags",
    ),
    plant(
        "the log has another name",
        "journal.py",
        (
            'LOG_PATH = "/var/log/azure/cluster-provision.log"',
            'LOG_PATH = "/var/log/azure/provision.log"',
        ),
        "observability/test_events.py",
        "there_was_a_record and wanted",
    ),
    plant(
        "a log that cannot be written ends the run",
        "journal.py",
        ("self._console(f\"The log '{LOG_PATH}' cannot be written: {error}.\")", "raise"),
        "observability/test_events.py",
        "cannot_be_written",
    ),
    plant(
        "a new driver is removed as on a node that opted out",
        "boot.py",
        (
            "facts.decision.action is Action.TEARDOWN:",
            "facts.decision.action.has_teardown:",
        ),
        "observability/test_events.py",
        "of_another_kind",
    ),
    plant(
        "a managed node is torn down like a node that opted out",
        "driver.py",
        (
            "scope = teardown_scope(configuration, is_opted_out=False)",
            "scope = teardown_scope(configuration, is_opted_out=True)",
        ),
        "observability/test_events.py",
        "of_another_kind",
    ),
    plant(
        "a run continues although containerd does not restart",
        "boot.py",
        (
            'actions=start("containerd", 30),\n                exit_code=ExitCode.SYSTEMCTL_START_FAIL,',
            'actions=start("containerd", 30),\n                exit_code=None,',
        ),
        "observability/test_exit_codes.py",
        "not_restart and validated",
    ),
    plant(
        "a GRID driver of another version counts as a bake for CUDA",
        "driver.py",
        (
            'driver_kind(facts.driver_type) == "grid" and not facts.is_kind_recorded',
            'driver_kind(facts.driver_type) == "grid"',
        ),
        "observability/test_events.py",
        "grid_node and not kind",
    ),
    plant(
        "a truncated configuration is reported as a defect of the program",
        "configuration.py",
        (
            "    except (ValueError, RecursionError) as error:",
            "    except RecursionError as error:",
        ),
        "observability/test_exit_codes.py",
        "cut",
    ),
    plant(
        "a plan writes its decision to the log",
        "__main__.py",
        (
            'self.print_line(f"# {facts.decision.render_line()}")',
            "self.node.journal.line(facts.decision.render_line())",
        ),
        "observability/test_status.py",
        "decision_of_a_boot",
    ),
    plant(
        "a corrupted infoROM is reported only if nvidia-smi fails",
        "driver.py",
        (
            "    if words is None or (words.can_retry_help and not result.ok):",
            "    if result.ok or words is None or words.can_retry_help:",
        ),
        "observability/test_exit_codes.py",
        "warned",
    ),
    plant(
        "an unreadable component list counts as a missing list",
        "bake.py",
        (
            "        raise ProvisioningError(\n            ExitCode.COMMAND_FAILED,\n            f\"The component list '{COMPONENTS_PATH}' cannot be read: {error}.\",\n        ) from error\n",
            "        node.journal.line(str(error))\n        tags = None\n",
        ),
        "observability/test_exit_codes.py",
        "component",
    ),
    plant(
        "a GRID node logs the removal only after the removal",
        "driver.py",
        (
            "actions.insert(0, log_line(render_grid_line(facts.driver_type, facts.record)))",
            "actions.append(log_line(render_grid_line(facts.driver_type, facts.record)))",
        ),
        "observability/test_events.py",
        "record_of_another_kind",
    ),
    plant(
        "a plan does not list the paths that a teardown removes",
        "facts.py",
        ("choose_removal(scope, observe(node, scope)).describe() if has_teardown else ()", "()"),
        "observability/test_events.py",
        "grid_node",
    ),
)
