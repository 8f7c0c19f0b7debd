"""Checkpoints: saved RAM and disk of a machine, from which clones start."""
