"""Mutation tests: they plant bugs in a package, whose tests must detect the bugs."""
