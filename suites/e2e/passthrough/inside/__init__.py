"""Programs that the tests run on the host of GPUs, which is a guest."""
