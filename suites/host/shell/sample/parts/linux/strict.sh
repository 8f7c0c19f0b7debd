#!/bin/bash
set -euo pipefail
NEEDS="${NEEDS:-default}"
strict_main() {
  local value
  value="$(get_value "$1")"
  [[ -n "$value" ]] || return 5
  echo "value=$value"
}
${__SOURCED__:+return}
echo "script ran with $# args: $*"
strict_main "${1:-x}"
exit 7
