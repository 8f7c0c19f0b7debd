"""Services of a node: what holds it back, what does not, and what each failure ends with.

Order is judged by systemd's own stamps and its queue of jobs, never by how long something took.
"""
