#!/bin/bash
# helpers of the provisioning script
ERR_SYSTEMCTL_START_FAIL=4
ERR_APT_UPDATE_TIMEOUT=99
ERR_GPU_DRIVERS_START_FAIL=84
UBUNTU_OS_NAME="UBUNTU"
MARINER_OS_NAME="MARINER"
OS=$(sed -n "s/^ID=//p" /etc/os-release | tr a-z A-Z)
declare -A REGISTRY=([mcr]="mcr.microsoft.com" [gcr]="gcr.io")
LIST=(one "two words" three)
readonly FIXED_PATH="/opt/azure/containers"

retrycmd_if_failure() {
  local retries=$1; wait_sleep=$2; timeout=$3; shift && shift && shift
  for i in $(seq 1 "$retries"); do
    timeout "$timeout" "${@}" && break || \
    if [ "$i" -eq "$retries" ]; then
      echo "Executed \"$*\" $i times;" >&2
      return 1
    else
      sleep "$wait_sleep"
    fi
  done
  echo "Executed \"$*\" $i times;"
}
_retry() {
  local tries=$1 pause=$2; shift 2
  for ((n = 1; n <= tries; n++)); do
    "$@" && return 0
    sleep "$pause"
  done
  return 1
}
wait_for_file() {
  retries=$1; wait_sleep=$2; filepath=$3
  paved=/opt/azure/cloud-init-files.paved
  grep -Fq "${filepath}" $paved && return 0
  for i in $(seq 1 $retries); do
    grep -Fq '#EOF' $filepath && break
    if [ $i -eq $retries ]; then
      return 1
    else
      sleep $wait_sleep
    fi
  done
  sed -i "/#EOF/d" $filepath
  echo $filepath >> $paved
}
systemctl_restart() {
  retries=$1; wait_sleep=$2; timeout=$3 svcname=$4
  for i in $(seq 1 $retries); do
    timeout $timeout systemctl daemon-reload
    timeout $timeout systemctl restart $svcname && break || \
    if [ $i -eq $retries ]; then
      return 1
    else
      systemctl status $svcname --no-pager -l
      journalctl -u $svcname
      sleep $wait_sleep
    fi
  done
}
systemctlEnableAndStart() {
  service=$1; timeout=$2
  systemctl_restart 3 5 "$timeout" "$service"
  RESTART_STATUS=$?
  systemctl status $service --no-pager -l > /var/log/azure/$service-status.log
  if [ $RESTART_STATUS -ne 0 ]; then
    echo "$service could not be started"
    return 1
  fi
  if ! retrycmd_if_failure 120 5 25 systemctl enable $service; then
    echo "$service could not be enabled by systemctl"
    return 1
  fi
}
semverCompare() {
  VERSION_A=$(echo $1 | cut -d "+" -f 1); VERSION_B=$(echo $2 | cut -d "+" -f 1)
  [[ "${VERSION_A}" == "${VERSION_B}" ]] && return 0
  sorted=$(echo ${VERSION_A} ${VERSION_B} | tr ' ' '\n' | sort -V)
  highestVersion=$(IFS= echo "${sorted}" | cut -d$'\n' -f2)
  [[ "${VERSION_A}" == ${highestVersion} ]] && return 0
  return 1
}
isMarinerOrAzureLinux() {
  local os=$1
  if [ "$os" = "$MARINER_OS_NAME" ] || [ "$os" = "AZURELINUX" ]; then return 0; fi
  return 1
}
should_skip_nvidia_drivers() {
  set -x
  body=$(curl -fsSL -H "Metadata: true" --noproxy "*" "http://169.254.169.254/metadata/instance/compute/tagsList?api-version=2019-06-04&format=json")
  ret=$?
  if [ "$ret" -ne 0 ]; then
    return $ret
  fi
  should_skip=$(echo "$body" | jq -r '.[] | select(.name == "SkipGpuDriverInstall") | .value' | tr '[:upper:]' '[:lower:]')
  echo "$should_skip"
}
logs_to_events() {
  local task=$1; shift
  local eventsFileName=$(date +%s%3N)
  local startTime=$(date +"%F %T.%3N")
  ${@}
  ret=$?
  local endTime=$(date +"%F %T.%3N")
  mkdir -p "${EVENTS_LOGGING_DIR}"
  printf '{"TaskName":"%s","Message":"%s","ret":%d}\n' "$task" "Completed: $*" "$ret" > ${EVENTS_LOGGING_DIR}${eventsFileName}.json
  if [ "$ret" != "0" ]; then
    return $ret
  fi
}
configureKubelet() {
  mkdir -p /etc/systemd/system/kubelet.service.d /etc/default
  cat > /etc/default/kubelet <<EOF
KUBELET_FLAGS=${KUBELET_FLAGS:-none}
KUBELET_NODE_LABELS="${LABELS}"
EOF
  chmod 0600 /etc/default/kubelet
  tee /etc/systemd/system/kubelet.service.d/10-x.conf > /dev/null <<'EOF'
[Service]
Environment="X=$HOME"
EOF
}
failing_exit() {
  echo "about to exit" >&2
  exit "${1:-$ERR_GPU_DRIVERS_START_FAIL}"
}
fill_ref() { local -n ref=$1; ref+=("added $2"); }
assign_nameref_map() { local -n m=$1; m[$2]=$3; }
trapping() { trap 'echo cleaned' EXIT; trap 'echo err >&2' ERR; false; echo after; }
subshelled() { ( cd /tmp && pwd ); ( exit 3 ); echo "sub $?"; }
background() { { sleep 0.1; echo bg; } & wait $!; echo "waited $?"; }
reads_stdin() { local l; while IFS= read -r l; do echo "got:$l"; done; }
heredoc_fn() { cat <<-TXT
	tabbed $1
	TXT
}
to_fd3() { exec 3>"$1"; echo three >&3; exec 3>&-; }
dup_out() { { echo inner; } 5>&1 1>&5; echo "to err" 1>&2; }
locale_len() { local s="$1"; echo "${#s}"; }
strict_body() { set -euo pipefail; local x; false | true; echo unreached; }
unset_var() { set -u; echo "${NOPE_NOT_SET}"; }
with_sudo() { sudo -E "$@"; }
run_it() { "$@"; }
check_cmd() { if command -v "$1" >/dev/null 2>&1; then echo "have $1"; else echo "no $1"; fi; }
uses_type() { type -t "$1"; }
long_output() { seq 1 "$1"; }
cd_there() { cd "$1" || return 9; pwd; }
global_set() { GLOBAL_A=1; export GLOBAL_B="b b"; GLOBAL_ARR=(x y "z z"); declare -gA GLOBAL_MAP=([k]=v); readonly GLOBAL_RO=ro; }
print_args() { printf '[%s]' "$@"; echo; }
pipe_status() { false | true | false; echo "${PIPESTATUS[@]}"; }
nested_cmd() { echo "$(echo "$(inner_mock a)" b)"; }
