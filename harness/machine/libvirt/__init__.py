"""Runs machines under libvirt, over one connection to libvirtd.

libvirt's Python binding is the optional extra `libvirt`. Only the module `binding` imports
libvirt's binding, and only when a connection is opened, so that the rest of the harness works
without the binding.
"""
