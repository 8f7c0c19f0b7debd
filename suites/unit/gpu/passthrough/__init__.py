"""Unit tests of the host's GPUs."""
