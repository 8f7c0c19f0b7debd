"""Tests of shell code: it runs in a sandboxed shell whose commands are mocked."""
