"""Emulates the GPU system processor (GSP), without which NVIDIA's driver can't open a GPU.

On Turing and later GPUs, NVIDIA's driver sends most of its work to the GSP as messages. The open
kernel modules contain the driver's side of these messages. The emulated GPU has no compute engines,
so CUDA will never work.
"""
