"""Connections to a running machine: agent, console, QMP, SSH."""
