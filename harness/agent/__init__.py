"""The guest agent: a program of the standard library alone, alive in every checkpoint.

It travels as a zipapp over the port that it then serves. The host's client, which shares `frames`
with it, is `harness.machine.agent`.
"""

from __future__ import annotations

PROTOCOL = 1
"""Raised whenever an older client and a newer agent would misunderstand each other."""
