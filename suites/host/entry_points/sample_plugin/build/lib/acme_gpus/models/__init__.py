"""Acme's GPU models."""
