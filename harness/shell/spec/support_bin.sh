# The '@name' commands of a spec project source this file. This file runs the real program, not the
# program's mock.

invoke() {
  PATH=$SHELLSPEC_PATH exec "$@"
}
