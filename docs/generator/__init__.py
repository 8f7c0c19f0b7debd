"""Builds the documentation site: reference pages and pictures generated from the code."""
