"""The driver's module for the running kernel, built or reused: sections 3 to 5 of the contract."""
