"""Unit tests of what the passthrough suites compute themselves."""
