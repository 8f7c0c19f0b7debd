"""Provisioning that is cut off, and what the next run makes of it: the whole contract, twice."""
