"""A GPU node's own work: standard library only, Python 3.10 and newer, travels as a zipapp."""
