"""Memory, cores and ports of the host, shared by all test runs of one user."""
