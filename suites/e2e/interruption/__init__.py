"""Provisioning that is interrupted, and the node after the next run: the whole contract, twice."""
