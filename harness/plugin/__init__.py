"""Pytest hooks and options."""
