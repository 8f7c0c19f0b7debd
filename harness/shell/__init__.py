"""Tests shell code: runs it in a sandboxed shell whose commands are mocked."""
