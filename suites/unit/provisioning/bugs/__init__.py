"""Defects that others had in production, or that their reviewers found: each named, each a test.

The number is that of the regression corpus; the name goes on with where it was found. AgentBaker,
aks-gpu and kaito are the projects; *latent* is a defect that nobody had reported yet.
"""
