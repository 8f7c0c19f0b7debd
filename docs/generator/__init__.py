"""Generates pictures for the documentation site, and pages that the installed package lacks."""
