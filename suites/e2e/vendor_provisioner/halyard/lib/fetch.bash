# fetch.bash - files from the mirror, with their checksums
#
# shellcheck shell=bash disable=SC2034,SC2154 # the other files of lib use or set it

function fetch_once {
  curl --silent --show-error --fail --location \
    --connect-timeout 10 --max-time 900 \
    --output "$2.part" "${HAL_MIRROR}/$1"
}

# fetch_file NAME PATH: the mirror has a list of digests beside its files.
function fetch_file {
  local name="$1" path="$2" list="${HAL_CACHE}/SHA256SUMS"
  mkdir -p "${HAL_CACHE}"
  retry "download of ${name}" fetch_once "${name}" "${path}" \
    || die "${EX_FETCH}" "${HAL_MIRROR}/${name} can't be downloaded"
  retry "download of SHA256SUMS" fetch_once SHA256SUMS "${list}" \
    || die "${EX_FETCH}" "${HAL_MIRROR}/SHA256SUMS can't be downloaded"
  mv -f "${list}.part" "${list}"
  fetch_verify "${name}" "${path}.part"
  mv -f "${path}.part" "${path}"
}

# fetch_verify NAME PATH
function fetch_verify {
  local wanted seen
  wanted="$(awk -v name="$1" '$2 == name { print $1 }' "${HAL_CACHE}/SHA256SUMS")"
  seen="$(sha256sum "$2" | cut -d ' ' -f 1)"
  [[ -n "${wanted}" ]] || die "${EX_CHECKSUM}" "SHA256SUMS of the mirror has no digest of $1"
  if [[ "${seen}" != "${wanted}" ]]; then
    die "${EX_CHECKSUM}" "$1 has the digest ${seen:0:12}, and the mirror says ${wanted:0:12}"
  fi
}

function runfile_name {
  printf 'NVIDIA-Linux-x86_64-%s.run' "${HAL_DRIVER_VERSION}"
}

function runfile_path {
  printf '%s/%s' "${HAL_CACHE}" "$(runfile_name)"
}

# A run-file of an earlier run is as good as a new one, once its digest is checked.
function fetch_runfile {
  local path
  path="$(runfile_path)"
  if [[ -s "${path}" && -s "${HAL_CACHE}/SHA256SUMS" ]]; then
    fetch_verify "$(runfile_name)" "${path}"
    info "${path##*/} is in the cache"
    return 0
  fi
  fetch_file "$(runfile_name)" "${path}"
}
