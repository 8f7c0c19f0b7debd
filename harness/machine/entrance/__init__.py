"""Lets people enter a running machine, from any process of the same user.

The process that runs a machine holds the machine's console and the channel of its agent. This
process serves the console and the channel on a socket in the machine's folder, and adds the
machine to the list that `harness ps` reads.
"""
