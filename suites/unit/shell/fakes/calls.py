"""Builds calls of mocked commands for tests."""

from __future__ import annotations

from harness.shell.mocks.commands import Call


def a_call(name: str, *arguments: str) -> Call:
    return Call(name=name, arguments=arguments, cwd="/", stdin=None, order=0, exported=dict)
