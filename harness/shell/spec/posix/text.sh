# Texts of %puts, %printf, %text and Data, files as strings, mocks, and %preserve.

__hx_puts() {
  local IFS=' '
  printf '%s' "$*"
}

__hx_putsn() {
  local IFS=' '
  printf '%s\n' "$*"
}

__hx_printf() { printf "$@"; }

__hx_sleep() { "$__hx_sleep" "$@"; }

__hx_logger() {
  local IFS=' '
  printf '%s\n' "$*" >>"${SHELLSPEC_LOGFILE:-/dev/null}"
}

__hx_expand() { # TEXT ARGS...: print TEXT expanded as in a heredoc, with ARGS as $1...
  local __hx_text="$1"
  shift
  eval "\"\$__hx_cat\" <<__HX_TEXT__
${__hx_text}__HX_TEXT__
"
}

__hx_read_file() { # FILE: set __hx_text to its text, without NUL bytes
  __hx_text=$("$__hx_tr" -d '\000' <"$1" && printf x)
  __hx_text=${__hx_text%x}
}

__hx_slurp() { # copy stdin to stdout, with a final newline
  local __hx_text=
  __hx_text=$("$__hx_cat" && printf x)
  __hx_text=${__hx_text%x}
  printf '%s\n' "${__hx_text%"$__hx_newline"}"
}

__hx_include() { # FILE ARGS...
  __SOURCED__=$1
  shift
  case $__SOURCED__ in
    */*) . "$__SOURCED__" ;;
    *) . "./$__SOURCED__" ;;
  esac
  unset __SOURCED__
}

__hx_preserve() { # V[:NEW]...
  local __hx_pair __hx_value
  for __hx_pair in "$@"; do
    eval "__hx_value=\${${__hx_pair%%:*}-}"
    __hx_quote "$__hx_value"
    printf '%s\n' "${__hx_pair#*:}=$__hx_quoted" >>/proc/self/fd/199
  done
}

__hx_restore() {
  . /proc/self/fd/199
}

__hx_mock() { # NUMBER NAME; in the block __hx_block
  case $2 in
    '' | . | .. | */*)
      /bin/sh "$SHELLSPEC_LIB/path_mocks.sh" put "$HX_MOCKS/$1/.body" "$2" "$__hx_block"
      return
      ;;
  esac
  # identical mocks of other examples share this file, see mocks.sh
  if ! [ "$HX_MOCKS/$1/$2" -ef "$HX_MOCKS/$1/.body" ]; then
    "$__hx_cp" -fp -- "$HX_MOCKS/$1/.body" "$HX_MOCKS/$1/$2"
  fi
  PATH=$HX_MOCKS/$1:$PATH
  case $2 in
    *[!A-Za-z0-9_]* | [0-9]*) return 0 ;;
  esac
  eval "$2() { command $2 \"\$@\"; }"
}

__hx_unmock_paths() { # BLOCK
  /bin/sh "$SHELLSPEC_LIB/path_mocks.sh" restore "$1" || :
}
