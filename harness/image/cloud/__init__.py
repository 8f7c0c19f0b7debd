"""Finds, downloads and verifies cloud images of distributions."""
