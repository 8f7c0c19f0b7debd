"""The container runtime interface (CRI), with which a kubelet starts pods by the node's runtime.

`runtime_v1.proto` has the used part of the CRI; `start_pod.py` runs in the guest.
"""
