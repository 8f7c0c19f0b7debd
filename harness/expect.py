"""Assertions on evidence; this module touches no machine."""
