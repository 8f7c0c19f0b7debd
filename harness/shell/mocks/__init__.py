"""Mocked commands for shell code, and for Python code that runs commands."""
