"""Parses and writes the formats of disks and archives."""
