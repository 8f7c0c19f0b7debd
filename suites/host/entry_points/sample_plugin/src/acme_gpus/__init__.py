"""Acme's extensions of the harness."""

from __future__ import annotations

from pathlib import Path

PROVISIONER = Path(__file__).with_name("provisioner.yaml")
