"""Runs mutation tests: plants defects in shell code, and reports which defects the tests notice."""
