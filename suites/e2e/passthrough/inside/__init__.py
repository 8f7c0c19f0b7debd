"""Programs that the tests run on the GPU host, which is a guest."""
