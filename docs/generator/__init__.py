"""Builds the documentation site: its pictures, and pages that only a checkout has."""
