"""Mutation tests of shell code: plants defects, and tells which of them the tests notice."""
