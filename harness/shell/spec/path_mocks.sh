# Replaces a file of the throw-away root by the script of a `Mock`, until the mock's block ends.
#
# path_mocks.sh put SCRIPT PATH BLOCK | restore BLOCK
#
# This is a separate program, which POSIX shells can run too. It uses copies of the commands that it
# needs, since a mock may replace such a command.

set -eu
folder=$HX_MOCKS/.paths
tools=$folder/.tools
PATH=$tools:/usr/sbin:/usr/bin:/sbin:/bin
newline='
'

refuse() { # MESSAGE
  printf '%s\n' "$1" >&2
  exit 1
}

put() { # SCRIPT PATH BLOCK
  [ -n "${HX_THROWAWAY-}" ] || refuse "A mock of the path '$2' needs the throw-away root; here it \
would replace a file of this host. Mock the plain name of the command instead."
  case $2 in
    '' | . | .. | */ | ../* | */.. | */../* | *"$newline"*)
      refuse "A mock can't be called '$2'. Name a command, or the path of its file."
      ;;
    /*) path=$2 ;;
    *) path=${PWD%/}/$2 ;;
  esac
  [ ! -d "$path" ] || refuse "'$2' can't be mocked: it is a directory."
  read -r interpreter <"$1"
  for word in ${interpreter#'#!'} sh bash; do
    word=$(command -v -- "$word") || continue
    [ ! "$path" -ef "$word" ] || refuse "'$2' can't be mocked: it runs the mocks themselves."
  done
  if [ ! -d "$tools" ]; then
    mkdir -p -- "$tools"
    for word in cp mkdir mv rm rmdir; do
      cp -L -- "$(command -v "$word")" "$tools/$word"
    done
  fi
  number=1
  while [ -d "$folder/$3/$number" ]; do number=$((number + 1)); done
  place=$folder/$3/$number
  mkdir -p -- "$place"
  made= above=${path%/*}
  while [ -n "$above" ] && [ ! -d "$above" ]; do
    made=$above above=${above%/*}
  done
  printf '%s\n%s\n' "$path" "$made" >"$place/what"
  mkdir -p -- "${path%/*}/" || refuse "'$2' can't be mocked: there can be no such file."
  if [ -e "$path" ] || [ -L "$path" ]; then
    # an ordinary user can't preserve the owner, so mv may print an error
    mv -- "$path" "$place/kept" 2>/dev/null || refuse "'$2' can't be mocked: the file can't be replaced."
  fi
  cp -- "$1" "$path" || refuse "'$2' can't be mocked: the file can't be written."
}

restore() { # BLOCK: restore the files that the block's mocks replaced, in reverse order
  [ -d "$folder/$1" ] || return 0
  number=1
  while [ -d "$folder/$1/$number" ]; do number=$((number + 1)); done
  while [ "$number" -gt 1 ]; do
    number=$((number - 1))
    place=$folder/$1/$number
    {
      IFS= read -r path
      IFS= read -r made
    } <"$place/what"
    rm -f -- "$path" || :
    if [ -e "$place/kept" ] || [ -L "$place/kept" ]; then
      mv -- "$place/kept" "$path" 2>/dev/null || :
    fi
    above=${path%/*}
    while [ -n "$made" ] && rmdir -- "$above" 2>/dev/null; do
      [ "$above" != "$made" ] || made=
      above=${above%/*}
    done
  done
  rm -rf -- "${folder:?}/$1"
}

"$@"
