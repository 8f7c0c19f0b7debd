"""Runs machines as QEMU processes of this host."""
