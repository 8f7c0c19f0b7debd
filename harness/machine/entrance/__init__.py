"""Lets people enter a running machine, from any process of the same user.

The process that runs a machine is connected to the machine's console and to its agent. This process
serves both connections on a socket in the machine's folder, and adds the
machine to the list that `harness ps` reads.
"""
