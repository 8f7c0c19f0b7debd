"""Machines under libvirt, over one connection each.

libvirt's Python binding is the optional extra `libvirt`. Only `binding` imports it, and only when a
connection is opened, so that everything else of the harness works where it is not installed.
"""
