"""The guest agent: a program that runs in each guest, and needs only Python's standard library.

The host sends the agent to the guest as a zipapp, over the serial port that the agent then serves.
The agent's client on the host is `harness.machine.channels.agent`; agent and client share `frames`.
"""

from __future__ import annotations

PROTOCOL = 2
"""The version of the protocol. Increase this number with each change of the protocol."""

OLDEST_PROTOCOL = 1
"""The oldest version that the client understands: a saved machine keeps its old agent."""

TERMINAL_PROTOCOL = 2
"""The first version with the request `resize`, and with `terminal` and `fallback` in `run`."""
