"""Translates and runs `*_spec.sh` files.

The translated specs run in a shell. For bash its part is `spec_runtime.sh` with the files of
`runtime/`, for POSIX shells `posix/runtime.sh` with the other files of `posix/`. The body of a
mocked command sources `mock_runtime.sh` (`posix/mock.sh`). The warm shell of the `shell` fixture has
its own, `harness/shell/warm_shell/runtime.sh`.
"""
