"""Benchmarks that need machines, held by tests of what they say and never of how long it took."""
