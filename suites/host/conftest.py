"""What the host suites share with the unit suites: temporary files in memory.

Every test starts and ends its own processes, so the tests run on any worker, beside others. xdist
sends them in their order, so that a fixture of module scope, such as a libvirtd, starts on few
workers.
"""

from __future__ import annotations

from suites.unit import conftest  # noqa: F401 - the import moves temporary files to memory
