"""A VM with a life cycle."""
