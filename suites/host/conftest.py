"""What the host suites share with the unit suites: temporary files lie in memory."""

from __future__ import annotations

from suites.unit import conftest  # noqa: F401 - it is the import that does it
