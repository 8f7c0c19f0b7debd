"""Collects and runs `*_spec.sh` files as pytest tests."""
