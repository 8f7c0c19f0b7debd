"""Makes the pytest command with which benchmarks run specs of shell code."""

from __future__ import annotations

import sys

#: Entry points of plugins that belong to the development environment only. These plugins change the
#: order of tests, run code for each test, or import much at the end.
_DEVELOPMENT_PLUGINS = (
    "hypothesispytest", "platformdirs", "randomly", "rerunfailures", "timeout",
)  # fmt: skip


def pytest_argv(*options: str) -> list[str]:
    """Return the pytest command for the current folder's specs, without plug-ins for development."""
    left_out = [word for name in _DEVELOPMENT_PLUGINS for word in ("-p", f"no:{name}")]
    return [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."),
        *left_out,
        *options,
    ]
