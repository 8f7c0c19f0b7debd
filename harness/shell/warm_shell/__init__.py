"""A shell that sources the code under test once and forks for each evaluation.

`shell` has the object of the `shell` fixture for tests. `warm_shell` has the bash process below
it, `pool` the processes that tests of one worker share. `runtime.sh` is the part that runs inside
bash.
"""
