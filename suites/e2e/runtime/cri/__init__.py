"""The container runtime interface (CRI), by which a kubelet has the node's runtime start pods.

`runtime_v1.proto` is the part of it that is used here; `start_pod.py` runs in the guest.
"""
