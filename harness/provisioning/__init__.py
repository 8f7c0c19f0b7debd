"""Provisions a GPU node; runs on the node as a zipapp that needs only Python 3.10."""

__version__ = "0.1.0"
