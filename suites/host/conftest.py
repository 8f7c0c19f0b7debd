"""Keeps the temporary files of host tests in memory, as for unit tests.

Every test starts and ends its own processes, so the tests run on any worker, beside other tests.
xdist distributes the tests in their order, so that a fixture of module scope, such as a libvirtd,
starts on few workers.
"""

from __future__ import annotations

from suites.unit import conftest  # noqa: F401 - the import moves temporary files to memory
