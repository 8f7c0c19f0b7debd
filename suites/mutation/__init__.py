"""Mutation tests: bugs planted in provisioning, which its unit suite must detect."""
