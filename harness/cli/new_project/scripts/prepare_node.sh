#!/bin/bash
# Prepares a GPU node at its first boot: counts the GPUs, and writes settings for services.
#
# Exit codes: 0 the node is ready, 3 the node has no GPU.
set -euo pipefail

SETTINGS=/etc/gpu-node/settings.env

# Prints the number of NVIDIA display controllers on the PCI bus.
count_gpus() {
  # A card has other functions too, such as audio; display controllers are class 03.
  lspci -Dn -d 10de: | grep -c '^[^ ]* 03' || true
}

# Writes the settings of a node with $1 GPUs.
write_settings() {
  mkdir -p "${SETTINGS%/*}"
  printf 'GPU_COUNT=%d\n' "$1" >"$SETTINGS"
}

main() {
  local count
  count=$(count_gpus)
  if ((count == 0)); then
    echo "prepare_node: this node has no GPU" >&2
    return 3
  fi
  write_settings "$count"
  echo "prepare_node: GPUs: $count"
}

# A test sources this file, and calls its functions.
if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  main "$@"
fi
