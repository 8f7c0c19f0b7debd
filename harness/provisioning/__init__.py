"""Provisioning of a GPU node; runs on the node as a zipapp, which needs only Python 3.10."""

__version__ = "0.1.0"
