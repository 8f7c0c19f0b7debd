Describe 'node @FILE@, part @PART@'
  Describe 'with mocks'
    apt_get_update() { :; }
    apt_get_install() { return 0; }
    check_disk() { echo 'enough'; }
    check_network() { return 0; }
    curl() { return 22; }
    dkms() { echo "dkms $*"; }
    dpkg() { echo "dpkg $*"; }
    get_metadata() { echo '{}'; }
    hostnamectl() { :; }
    iptables() { :; }
    journalctl() { :; }
    load_module() { return 0; }
    logger() { :; }
    modprobe() { echo "modprobe $*"; }
    mount() { return 1; }
    nvidia_smi() { echo 'NVIDIA-SMI 580'; }
    reboot() { return 99; }
    sysctl() { echo "sysctl $*"; }
    udevadm() { :; }
    useradd() { return 9; }

    It 'installs the driver'
      fetch() { echo "fetched $1"; }
      unpack() { echo "unpacked $1" | sed -e 's/$/./'; }
      verify() { echo "$1" | sed -e 's/.*-//' >/dev/null; }
      When call install_driver 580.@PART@
      The output should include 'unpacked driver-580.@PART@'
      The status should be success
    End

    It 'reports a driver that cannot be verified'
      fetch() { echo "fetched $1"; }
      unpack() { echo "unpacked $1" | sed -e 's/unpacked/extracted/'; }
      verify() { return 7; }
      When run install_driver 580.@PART@
      The output should include 'extracted driver-580.@PART@'
      The status should equal 1
    End

    It 'installs packages'
      Mock apt-get
        echo "apt-get $*" | sed -e 's/get update/get refresh/'
      End
      Mock systemctl
        echo "systemctl $*"
      End
      When call install_packages nvidia-container-toolkit
      The line 1 of output should equal 'apt-get refresh'
      The line 2 of output should equal 'apt-get install nvidia-container-toolkit'
      The line 3 of output should equal 'systemctl restart containerd'
      The status should be success
    End

    It 'retries until the service answers'
      answers() { ((try == 4)); }
      When run retry 5 0.1 answers
      The output should equal 'succeeded in try 4'
      The status should be success
    End

    It 'starts services in the background'
      start_service() { echo "starting $1" | sed -e 's/$/./'; }
      When call start_services
      The output should include 'starting kubelet.'
      The output should end with 'all services started'
    End
  End

  Describe 'with files'
    setup() {
      folder=$(mktemp -d)
      config=$folder/node.json template=$folder/unit.in
      meminfo=$folder/meminfo os_release=$folder/os-release
      cat >"$config" <<'JSON'
{
  "name": "node-@FILE@",
  "driver": {"kind": "cuda", "version": "580.@PART@.02", "packages": ["driver", "toolkit"]},
  "gpus": [{"model": "h100-sxm5-80gb", "slot": 1}, {"model": "h100-sxm5-80gb", "slot": 2}]
}
JSON
      printf '%s\n' '[Unit]' 'Description=@NAME@' '[Service]' 'ExecStart=@PROGRAM@' >"$template"
      printf '%s\n' 'MemTotal: 32768 kB' 'MemAvailable: 20480 kB' >"$meminfo"
      printf '%s\n' 'NAME="Debian"' 'ID=debian' 'VERSION_ID="12"' >"$os_release"
    }
    cleanup() { rm -rf "$folder"; }
    BeforeEach 'setup'
    AfterEach 'cleanup'

    It 'reads and writes its configuration'
      change() {
        set_config_value .driver.kind grid
        config_value '.driver.kind, .driver.packages[]' | sed -e 's/^/- /'
      }
      When call change
      The line 1 of output should equal '- grid'
      The line 3 of output should equal '- toolkit'
    End

    It 'names its GPUs and its driver branch'
      describe_node() {
        gpu_names
        driver_branch
      }
      When call describe_node
      The line 2 of output should equal 'GPU h100 sxm5 80gb'
      The line 3 of output should equal 580
    End

    It 'renders a unit'
      write_unit() {
        render_unit dcgm /usr/bin/dcgm >"$folder/dcgm.service"
        echo "written for $(os_field ID) $(os_field VERSION_ID)"
      }
      When call write_unit
      The output should equal 'written for debian 12'
      The path "$folder/dcgm.service" should be file
      The contents of file "$folder/dcgm.service" should include 'ExecStart=/usr/bin/dcgm'
    End

    It 'measures its memory and logs it'
      log_memory() { log_line "$(os_field ID): $(free_memory_mib) MiB free"; }
      When run log_memory
      The output should equal 'TIME debian: 20 MiB free'
    End

    It 'refuses an unknown driver kind'
      check_kind() {
        local kind
        kind=$(config_value .driver.kind)
        case $kind in
          grid) echo "$kind" ;;
          *) echo "unknown kind $kind" | sed -e 's/cuda/CUDA/' >&2; exit 3 ;;
        esac
      }
      When run check_kind
      The stderr should equal 'unknown kind CUDA'
      The status should equal 3
    End
  End
End
