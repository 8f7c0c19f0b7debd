# Sourced by the '@name' commands of a spec project: runs the real program behind the mocks.

invoke() {
  PATH=$SHELLSPEC_PATH exec "$@"
}
