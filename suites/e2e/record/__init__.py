"""The prebake record, and what a node decides by it: sections 3 and 5 of the contract."""
