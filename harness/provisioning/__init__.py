"""A GPU node's own work: standard library only, Python 3.10 and newer, travels as a zipapp."""

__version__ = "0.1.0"
