"""Draws the picture at the top of the README: from a test to its verdict."""

from __future__ import annotations

from docs.generator import drawing

_TEST = "a pytest test"
_SPEC = "*_spec.sh"
_FIXTURES = "boot_node, clone"
_SHELL = "warm shell: mocks, virtual time"
_LAB = "image + seed + GPU"
_MACHINE = "VM under QEMU or libvirt"
_GUEST = "cloud-init, provisioning"
_GPU = "emulated GPU"
_EVIDENCE = "evidence: logs, states, traces"
_VERDICT = "verdict: passed, failed, could not tell"

_STEPS = {
    _TEST: {_FIXTURES, _SHELL},
    _SPEC: {_SHELL},
    _FIXTURES: {_LAB},
    _LAB: {_MACHINE},
    _MACHINE: {_GUEST, _GPU},
    _GUEST: {_EVIDENCE},
    _GPU: {_EVIDENCE},
    _EVIDENCE: {_VERDICT},
    _SHELL: {_VERDICT},
    _VERDICT: set[str](),
}


def picture() -> str:
    """Return the picture as SVG."""
    edges = {name: frozenset(targets) for name, targets in _STEPS.items()}
    return drawing.layered(edges, title="From a test to its verdict")
