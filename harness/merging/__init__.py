"""Merges the reports of all shards of a run into one report."""
