"""Translates and runs `*_spec.sh` files.

Translated specs run in a shell with a runtime of shell functions. The runtime for bash is
`spec_runtime.sh` with the files of `runtime/`; the runtime for POSIX shells is `posix/runtime.sh`
with the other files of `posix/`. The script that replaces a mocked command sources
`mock_runtime.sh` or `posix/mock.sh`. The warm shell of the `shell` fixture has another runtime,
`harness/shell/warm_shell/runtime.sh`.
"""
