"""Machines on which something common goes wrong, and what the summary of their tests says."""
