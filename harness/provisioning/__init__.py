"""Provisioning of a GPU node; runs on the node as a zipapp, on Python 3.10 without packages."""

__version__ = "0.1.0"
