"""Measures the time from a ready node to a usable GPU, for each way to install the driver."""
