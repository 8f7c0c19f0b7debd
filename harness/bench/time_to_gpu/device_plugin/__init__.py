"""A kubelet and a device plugin for a guest: stand-ins that speak the real protocol, v1beta1."""
