"""Measurements of this host: functions that return figures and print nothing."""
