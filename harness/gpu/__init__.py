"""The model catalogue; what a GPU adds to a machine."""
