"""Acme's images."""
