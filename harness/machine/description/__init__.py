"""What a machine consists of, and the QEMU command line that follows from it."""
