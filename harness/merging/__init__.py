"""Merges the reports of all shards of a run into those of one."""
