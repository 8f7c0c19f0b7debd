"""The prebake record, and what a node decides from the record: sections 3 and 5 of the contract."""
