# Texts of %puts, %printf, %text and Data, and files as strings.

__hx_puts() {
  local IFS=' '
  builtin printf '%s' "$*"
}

__hx_putsn() {
  local IFS=' '
  builtin printf '%s\n' "$*"
}

__hx_printf() {
  builtin printf "$@"
}

__hx_sleep() {
  builtin command -p sleep "$@"
}

__hx_logger() {
  local IFS=' '
  builtin printf '%s\n' "$*" >>"${SHELLSPEC_LOGFILE:-/dev/null}"
}

__hx_expand() { # TEXT ARGS...: print TEXT expanded as in a heredoc, with ARGS as $1...
  local __hx_text=$1
  builtin shift
  eval "IFS= builtin read -r -d '' __hx_text <<__HX_TEXT__
${__hx_text}__HX_TEXT__
" || :
  builtin printf '%s' "$__hx_text"
}

__hx_read_file() { # FILE: set __hx_text to its text, without NUL bytes
  local __hx_part=
  __hx_text=
  {
    while IFS= builtin read -r -d '' __hx_part; do
      __hx_text+=$__hx_part
    done
  } <"$1"
  __hx_text+=$__hx_part
}

__hx_slurp() { # copy stdin to stdout, with a final newline
  local __hx_part=
  while IFS= builtin read -r -d '' __hx_part; do
    builtin printf '%s' "$__hx_part"
  done
  builtin printf '%s' "$__hx_part"
  [[ $__hx_part == *$'\n' ]] || builtin printf '\n'
}
