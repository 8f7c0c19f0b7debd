"""Tests shell code in a sandboxed shell with mocked commands."""
