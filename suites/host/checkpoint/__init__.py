"""Checkpoints on this host's file system."""
