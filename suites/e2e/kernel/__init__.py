"""The module of the kernel that runs, built or reused: sections 3 to 5 of the contract."""
