"""Registers the plug-ins that complete the reports of pytest and Allure, if a run writes reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.plugin import junit
from harness.plugin.unwritten import is_replaceable, require_writable

if TYPE_CHECKING:
    from harness.settings import Settings


def add_options(parser: pytest.Parser) -> None:
    """Add the ini options about reports to pytest."""
    parser.addini(
        "allure_severity",
        "severities of tests in Allure by folder or file, such as 'suites/e2e/record: critical'; the innermost "
        "folder or file counts, and a test's own `allure.severity` overrides it",
        type="linelist",
        default=[],
    )


def register(config: pytest.Config, settings: Settings) -> None:
    """Register the plug-ins for reports; raises pytest.UsageError if the configuration is wrong."""
    junit.register(config)
    allure = config.getoption("allure_report_dir", None)
    xml = config.getoption("xmlpath", None)
    given = "--report-dir" if config.getoption("--report-dir", None) else None
    try:
        # Workers of xdist need no check: the process that started the workers has made the check.
        is_first = not config.option.collectonly and not hasattr(config, "workerinput")
        if xml and is_first and is_replaceable(Path(xml).expanduser()):
            require_writable(
                Path(xml).expanduser().absolute().parent, option=given or "--junitxml"
            )
        if not allure:
            return
        from harness.plugin import allure_report  # noqa: PLC0415 - most runs write no Allure results

        if is_first:
            require_writable(Path(allure).absolute(), option=given or "--alluredir")
        allure_report.register(config, settings)
    except BadInputError as error:
        raise pytest.UsageError(str(error)) from error
