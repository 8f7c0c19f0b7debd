"""The catalogue of images."""
