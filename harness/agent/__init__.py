"""The guest agent: a program of the standard library only, which runs in every checkpoint.

The host sends it as a zipapp over the port that it then serves. The client on the host, which also
uses `frames`, is `harness.machine.channels.agent`.
"""

from __future__ import annotations

PROTOCOL = 1
"""The protocol version; increased with each incompatible change."""
