# The functions that the body of a mocked command may call; %preserve returns variables to the spec.

__hx_fd=/proc/self/fd
__hx_newline='
'
__hx_cat=$(command -v cat) __hx_tr=$(command -v tr) __hx_sleep=${HX_SLEEP:-$(command -v sleep)}
. "$SHELLSPEC_LIB/posix/text.sh"

__hx_quote() { # TEXT: set __hx_quoted to TEXT, quoted
  local __hx_rest="$1"
  __hx_quoted="'"
  while :; do
    case $__hx_rest in
      *\'*)
        __hx_quoted="$__hx_quoted${__hx_rest%%\'*}'\\''"
        __hx_rest=${__hx_rest#*\'}
        ;;
      *) break ;;
    esac
  done
  __hx_quoted="$__hx_quoted$__hx_rest'"
}

[ ! -s /proc/self/fd/199 ] || __hx_restore
