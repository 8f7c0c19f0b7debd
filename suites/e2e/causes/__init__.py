"""Machines with a common fault, and what the summary of their tests says about it."""
