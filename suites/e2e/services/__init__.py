"""Services of a node: which services a node waits for, and the exit code for each failure.

The tests judge the order by systemd's times and job queue, never by durations.
"""
