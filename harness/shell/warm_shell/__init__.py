"""A shell that sources the code under test once and forks for each evaluation.

The module `shell` defines the class of the `shell` fixture. `warm_shell` controls the bash process
that runs the code, `pool` keeps the processes that tests of one worker share, and `runtime.sh` is
the part that runs inside bash.
"""
