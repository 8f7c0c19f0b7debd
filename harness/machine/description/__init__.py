"""The parts of a machine, and the QEMU command line that follows from them."""
