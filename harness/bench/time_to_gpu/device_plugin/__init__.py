"""A stand-in kubelet and a stand-in device plugin for a guest, with the real protocol v1beta1."""
