"""The emulated GPU that NVIDIA's driver opens: it acts as the GPU's system processor (GSP).

Since Turing, NVIDIA's driver hands most of its work to that processor by messages; the open kernel
modules show the other side of these messages. There are no engines that compute: CUDA will never
work.
"""
