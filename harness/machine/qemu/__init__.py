"""Machines as QEMU processes of this host."""
