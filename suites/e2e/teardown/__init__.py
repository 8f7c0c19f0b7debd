"""Removing a baked driver that a node will not use: section 6 of the contract."""
