"""Campaigns of faults and long runs: `./dev endure NAME|mix [--minutes M] [--seed S]`.

A campaign tries cases in an order that its seed decides, and looks after each try whether a promise of the
harness is broken. It runs in name spaces of its own (`surroundings`), so that what is left is seen whole, and
ends with them. A campaign is a row of the table in `campaigns`.
"""
