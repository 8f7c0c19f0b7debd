# The '@name' commands of a spec project source this file. It runs the real program, not its mock.

invoke() {
  PATH=$SHELLSPEC_PATH exec "$@"
}
