"""Campaigns of faults and long runs: `./dev endure NAME|mix [--minutes M] [--seed S]`.

A seed decides the order in which a campaign tries its cases. After each try, the campaign checks
whether a promise of the harness is broken. Most campaigns run in separate namespaces
(`surroundings`), so that each process and file that a try leaves is found, and is removed with the
namespaces. The table in `campaigns` has a row for each campaign.
"""
