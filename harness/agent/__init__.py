"""The guest agent: a program that runs in each guest, and needs only the standard library.

The host sends the agent as a zipapp over the port that the agent then serves. The client on the
host is `harness.machine.channels.agent`, which also uses `frames`.
"""

from __future__ import annotations

PROTOCOL = 2
"""The version of the protocol. Increase this number with each change of the protocol."""

OLDEST_PROTOCOL = 1
"""The oldest version that the client understands: a saved machine keeps its old agent."""

TERMINAL_PROTOCOL = 2
"""The first version with the request `resize`, and with `terminal` and `fallback` in `run`."""
