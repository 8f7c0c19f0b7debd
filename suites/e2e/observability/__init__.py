"""Tests of a run's output for operators: the exit code, the error message, events and log lines."""
