"""How containers get their GPU: section 10 of the contract."""
