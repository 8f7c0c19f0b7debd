"""Tests on machines with a common fault, and tests of the summary, which names the fault."""
