"""The emulated GPU that NVIDIA's driver opens, with an emulated GPU system processor (GSP).

Since Turing, NVIDIA's driver delegates most of its work to that processor by messages; the open
kernel modules contain the driver's side of these messages. There are no compute engines, so CUDA
will never work.
"""
