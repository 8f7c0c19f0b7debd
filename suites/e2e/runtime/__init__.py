"""How containers get the node's GPU: section 10 of the contract."""
