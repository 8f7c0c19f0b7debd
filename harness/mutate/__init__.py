"""Mutation tests of shell code: plants defects, and reports which of them the tests notice."""
