# The shell code under test of the realistic suite, with typical functions of node provisioning scripts.

config_value() { # FILTER
  jq -r "$1" "$config"
}

set_config_value() { # PATH VALUE
  jq --arg value "$2" "$1 = \$value" "$config" >"$config.new" && mv "$config.new" "$config"
}

gpu_names() {
  jq -r '.gpus[].model' "$config" | sed -e 's/-/ /g' -e 's/^/GPU /'
}

driver_branch() {
  local version
  version=$(config_value .driver.version)
  echo "$version" | sed -e 's/\..*//'
}

render_unit() { # NAME PROGRAM
  sed -e "s|@NAME@|$1|" -e "s|@PROGRAM@|$2|" "$template"
}

os_field() { # NAME
  grep "^$1=" "$os_release" | cut -d= -f2 | tr -d '"'
}

free_memory_mib() {
  awk '/^MemAvailable:/ { printf "%d\n", $2 / 1024 }' "$meminfo"
}

log_line() { # TEXT
  printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M)" "$1" | sed -e 's/^....-..-..T..:../TIME/'
}

retry() { # TRIES DELAY COMMAND...
  local tries=$1 delay=$2 try
  shift 2
  for ((try = 1; try <= tries; try++)); do
    if "$@"; then
      echo "succeeded in try $try"
      return 0
    fi
    sleep "$delay"
  done
  echo "gave up after $tries tries"
  return 1
}

install_driver() { # VERSION
  fetch "driver-$1" && unpack "driver-$1" && verify "driver-$1" || return 1
  echo "installed $1"
}

install_packages() { # PACKAGE...
  apt-get update || return 10
  apt-get install "$@" || return 11
  systemctl restart containerd
}

start_services() {
  local name
  for name in containerd kubelet; do
    start_service "$name" &
  done
  wait
  echo "all services started"
}
