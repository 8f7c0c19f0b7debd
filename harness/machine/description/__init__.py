"""The description of a machine, and its QEMU command line."""
