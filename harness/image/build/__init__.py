"""Builds images from recipes."""
