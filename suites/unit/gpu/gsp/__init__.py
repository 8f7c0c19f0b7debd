"""Tests of the emulated GPU that NVIDIA's driver opens."""
