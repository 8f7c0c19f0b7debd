"""A file-locked claim on something of the host, void when its holder dies."""
