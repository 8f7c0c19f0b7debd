"""A shell that sources the code under test once and forks for each evaluation.

The module `shell` defines the class of the `shell` fixture. The module `warm_shell` controls the
bash process that runs the code under test, the module `pool` stores the bash processes that tests
of one worker share, and `runtime.sh` runs inside bash.
"""
