"""Machines under libvirt, over one connection each.

libvirt's Python binding is the optional extra `libvirt`. Only `binding` imports it, and only when a
connection is opened, so that the rest of the harness works without the binding.
"""
