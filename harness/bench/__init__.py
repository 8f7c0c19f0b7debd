"""Benchmarks on this host: functions that measure, return figures and print nothing."""
