"""The emulated GPU that NVIDIA's driver opens: it plays the GPU's system processor (GSP).

Since Turing, NVIDIA's driver hands most of its work to that processor by messages, whose other side is
public in the open kernel modules. There are no engines that compute: CUDA will never work.
"""
