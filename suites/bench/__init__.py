"""Tests of benchmarks on machines: the tests check the reports, and never how long the work took."""
