"""Provisioning that is interrupted, and the state of the node after the next run."""
