"""The description of a machine, and the QEMU command line that follows from it."""
