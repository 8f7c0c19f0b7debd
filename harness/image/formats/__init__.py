"""Formats of disks and archives, parsed and written."""
