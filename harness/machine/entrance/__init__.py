"""Lets people enter a running machine, from any process of the same user.

The process that runs a machine holds its console and its agent's channel. It serves both on a
socket in the machine's folder, and adds the machine to the list that `harness ps` reads.
"""
