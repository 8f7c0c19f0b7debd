#!/bin/bash
Describe 'cse_helpers.sh'
  Include "./parts/linux/cse_helpers.sh"

  Describe 'retrycmd_if_failure'
    sleep() { :; }
    timeout() { shift; "$@"; }
    It 'succeeds at once'
      ok() { echo "ok $*"; }
      When call retrycmd_if_failure 3 1 10 ok a b
      The status should be success
      The line 1 of output should equal "ok a b"
      The output should include 'Executed "ok a b" 1 times;'
    End
    It 'returns 1 after all tries'
      bad() { return 1; }
      When call retrycmd_if_failure 3 1 10 bad
      The status should eq 1
      The stderr should include "3 times"
    End
    It 'counts with a file'
      counter="$SHELLSPEC_WORKDIR/count"
      echo 0 > "$counter"
      flaky() { n=$(($(cat "$counter") + 1)); echo $n > "$counter"; [ "$n" -ge 3 ]; }
      When call retrycmd_if_failure 5 1 10 flaky
      The status should be success
      The contents of file "$counter" should equal 3
      The stdout should be present
    End
  End

  Describe 'time that passes'
    It 'sleeps between tries'
      When call _retry 3 0.01 false
      The status should be failure
    End
    It 'is limited by the real timeout'
      When call timeout 5 bash -c 'exit 3'
      The status should equal 3
    End
  End

  Describe 'systemctlEnableAndStart'
    setup() { mkdir -p /var/log/azure; }
    cleanup() { rm -rf /var/log/azure; }
    BeforeEach 'setup'
    AfterEach 'cleanup'
    systemctl() {
      echo "systemctl $*" >&2
      case "$1" in
        restart) return "${RESTART:-0}" ;;
      esac
    }
    timeout() { shift; "$@"; }
    sleep() { :; }
    journalctl() { echo "journal of $2"; }
    It 'starts and enables'
      When call systemctlEnableAndStart kubelet 30
      The status should be success
      The stderr should include "systemctl restart kubelet"
      The output should include 'Executed "systemctl enable kubelet" 1 times'
      The path /var/log/azure/kubelet-status.log should be exist
    End
    It 'gives up'
      RESTART=1
      When call systemctlEnableAndStart kubelet 30
      The status should be failure
      The output should include "kubelet could not be started"
      The output should include "journal of kubelet"
      The stderr should be present
    End
  End

  Describe 'semverCompare'
    Parameters
      "1.2.3" "1.2.3" 0
      "1.2.4" "1.2.3" 0
      "1.2.3" "1.2.4" 1 # lower
      "1.10.0+x" "1.9.0" 0
    End
    It "compares $1 with $2"
      When call semverCompare "$1" "$2"
      The status should equal "$3"
    End
  End
  Describe 'semver matrix'
    Parameters:matrix
      MARINER AZURELINUX
      1 2
    End
    Example "is mariner ($1/$2)"
      When call isMarinerOrAzureLinux "$1"
      The status should be success
    End
  End
  Describe 'values'
    Parameters:value UBUNTU FLATCAR "SOME OTHER"
    It "is not mariner: $1"
      When call isMarinerOrAzureLinux "$1"
      The status should be failure
    End
  End
  Describe 'dynamic'
    Parameters:dynamic
      for i in 1 2 3; do
        %data "n$i" $((i * i))
      done
    End
    It "squares $1 -> $2"
      When call echo "$1:$2"
      The output should equal "$1:$2"
    End
  End

  Describe 'should_skip_nvidia_drivers'
    It 'asks the metadata service'
      curl() { cat <<'J'
[{"name":"x","value":"1"},{"name":"SkipGpuDriverInstall","value":"True"}]
J
      }
      jq() { sed -n 's/.*SkipGpuDriverInstall","value":"\([^"]*\)".*/\1/p'; }
      When call should_skip_nvidia_drivers
      The output should equal "true"
      The stderr should include 'curl -fsSL'
      The status should be success
    End
    It 'returns the error of curl'
      curl() { return 28; }
      When call should_skip_nvidia_drivers
      The status should equal 28
      The stderr should include '+'
    End
  End

  Describe 'logs_to_events'
    EVENTS_LOGGING_DIR="$SHELLSPEC_WORKDIR/events/"
    AfterEach 'rm -rf "$EVENTS_LOGGING_DIR"'
    It 'writes an event'
      mock_task() { echo "task $*"; }
      When call logs_to_events AKS.CSE mock_task 1 2
      The output should equal "task 1 2"
      The value "$(ls "$EVENTS_LOGGING_DIR" | wc -l)" should eq 1
    End
    It 'passes the status on'
      mock_task() { return 17; }
      When call logs_to_events AKS.CSE mock_task
      The status should eq 17
      The dir "$EVENTS_LOGGING_DIR" should be exist
    End
  End

  Describe 'configureKubelet'
    KUBELET_FLAGS="--a --b"
    LABELS="x=y"
    It 'writes into /etc'
      When call configureKubelet
      The status should be success
      The contents of file "/etc/default/kubelet" should include "KUBELET_FLAGS=--a --b"
      The line 2 of contents of file "/etc/default/kubelet" should equal 'KUBELET_NODE_LABELS="x=y"'
      The path "/etc/systemd/system/kubelet.service.d/10-x.conf" should be file
      The contents of file "/etc/systemd/system/kubelet.service.d/10-x.conf" should include 'X=$HOME'
      The file "/etc/default/kubelet" should be readable
      The file "/etc/default/kubelet" should not be executable
      The dir /etc/systemd/system/kubelet.service.d should be directory
      The path /etc/nothing-here should not be exist
    End
  End

  Describe 'exits'
    It 'exits with the code'
      When run failing_exit
      The status should eq 84
      The stderr should equal "about to exit"
    End
    It 'exits with another code'
      When run failing_exit 3
      The status should eq 3
      The error should be present
    End
    It 'is strict'
      When run strict_body
      The status should be failure
      The output should not include unreached
    End
    It 'finds an unset variable'
      When run unset_var
      The status should be failure
      The stderr should include "NOPE_NOT_SET"
    End
  End
  Describe 'bash of all kinds'
    It 'namerefs'
      arr=(first)
      When call fill_ref arr second
      The variable 'arr[1]' should equal "added second"
      The variable 'arr[@]' should equal "first added second"
    End
    It 'maps'
      declare -A themap=()
      When call assign_nameref_map themap key "a value"
      The variable 'themap[key]' should equal "a value"
    End
    It 'map from script'
      The variable 'REGISTRY[mcr]' should equal "mcr.microsoft.com"
      The variable 'LIST[1]' should equal "two words"
      The variable FIXED_PATH should be readonly
    End
    It 'traps in run'
      When run trapping
      The output should equal "after
cleaned"
      The stderr should equal err
    End
    It 'subshells'
      When call subshelled
      The line 1 of output should equal /tmp
      The line 2 should equal "sub 3"
    End
    It 'background jobs'
      When call background
      The first line of output should equal bg
      The second line of output should equal "waited 0"
    End
    It 'data block'
      Data
        #|line one
        #|  line two
        #|
        #|last $HOME
      End
      When call reads_stdin
      The line 1 of output should equal "got:line one"
      The line 2 of output should equal "got:  line two"
      The line 3 of output should equal "got:"
      The line 4 of output should equal 'got:last $HOME'
    End
    It 'data expand'
      name=world
      Data:expand
        #|hello $name
        #|sum $((1+2))
      End
      When call reads_stdin
      The output should equal "got:hello world
got:sum 3"
    End
    It 'data string'
      Data 'just this'
      When call reads_stdin
      The output should equal 'got:just this'
    End
    It 'data function'
      gen() { echo "g1 $1"; echo g2; }
      Data gen x
      When call reads_stdin
      The lines of output should equal 2
      The output should include "got:g1 x"
    End
    It 'data filter'
      Data | tr 'a-z' 'A-Z'
        #|abc
      End
      When call reads_stdin
      The output should equal 'got:ABC'
    End
    It 'data file'
      Data < ./parts/linux/main.sh
      When call reads_stdin
      The output should include 'got:#!/bin/bash'
    End
    It 'no data means no stdin'
      When call reads_stdin
      The output should be blank
    End
    It 'heredocs with tabs'
      When call heredoc_fn x
      The output should equal "tabbed x"
    End
    It 'fd 3'
      When call to_fd3 "$SHELLSPEC_WORKDIR/three"
      The contents of file "$SHELLSPEC_WORKDIR/three" should equal three
    End
    It 'dups'
      When call dup_out
      The output should equal inner
      The stderr should equal "to err"
    End
    It 'long output'
      When call long_output 50000
      The lines of output should equal 50000
      The line 49999 of output should equal 49999
      The output should end with 50000
      The output should start with "1
2"
    End
    It 'changes directory'
      When call cd_there /usr
      The output should equal /usr
      The value "$PWD" should equal /usr
    End
    It 'is back'
      The value "$PWD" should equal "$SHELLSPEC_PROJECT_ROOT"
    End
    It 'global variables'
      When call global_set
      The variable GLOBAL_A should equal 1
      The variable GLOBAL_B should be exported
      The variable GLOBAL_A should not be exported
      The variable 'GLOBAL_ARR[2]' should equal "z z"
      The variable 'GLOBAL_MAP[k]' should equal v
      The variable GLOBAL_RO should be readonly
      The variable GLOBAL_NOPE should be undefined
    End
    It 'run does not leak'
      When run global_set
      The variable GLOBAL_A should be undefined
      The status should be success
    End
    It 'odd arguments'
      When call print_args "a b" '' "c\"d" '*' "e
f" '$x' \\ '#no comment'
      The output should equal '[a b][][c"d][*][e
f][$x][\][#no comment]'
    End
    It 'pipestatus'
      When call pipe_status
      The output should equal "1 0 1"
    End
    It 'unicode'
      When call locale_len "äöü"
      The output should match pattern '[36]'
      The length of output should equal 1
    End
    It 'word'
      When call echo "alpha beta  gamma"
      The word 3 of output should equal gamma
      The second word of output should equal beta
      The 1st word of output should equal alpha
    End
  End
  Describe 'mocks'
    inner_mock() { echo "inner $1 $(other_mock)"; }
    other_mock() { echo other; }
    It 'nest'
      When call nested_cmd
      The output should equal "inner a other b"
    End
    It 'are found by command -v'
      curl() { :; }
      When call check_cmd curl
      The output should equal "have curl"
    End
    It 'unknown'
      When call check_cmd surely-no-such-thing
      The output should equal "no surely-no-such-thing"
    End
    It 'overrides command'
      command() { echo "command: $*"; return 1; }
      When call check_cmd curl
      The output should equal "no curl"
    End
    It 'sudo wrappers'
      sudo() { shift; "$@"; }
      apt-get() { echo "apt-get $*"; }
      When call with_sudo apt-get install -y x
      The output should equal "apt-get install -y x"
    End
    It 'overrides test, kill, rm, cat, ls, tee, exit'
      test() { echo t; }
      kill() { echo k; }
      rm() { echo "r $*"; }
      cat() { echo c; }
      ls() { echo l; }
      tee() { echo e; }
      exit() { echo "x $*"; }
      all() { test; kill -0 1; rm -rf /never; cat; ls; tee; exit 3; }
      When call all
      The output should equal "t
k
r -rf /never
c
l
e
x 3"
    End
    It 'printf with pass-through'
      printf() { builtin printf "$@"; }
      When call print_args a
      The output should equal '[a]'
    End
    It 'command mock'
      Mock mktool
        echo "mktool $1 $#"
        exit 5
      End
      When run command mktool a b
      The output should equal "mktool a 2"
      The status should equal 5
    End
    It 'command mock in a child'
      Mock nvidia-smi
        echo "GPU 0"
      End
      When call bash -c 'nvidia-smi; echo $?'
      The output should equal "GPU 0
0"
    End
    It 'preserve'
      count=0
      Mock counter
        count=$((count + 1))
        %preserve count
        echo "$count"
      End
      thrice() { counter; counter; counter; }
      When call thrice
      The output should equal "1
2
3"
      The variable count should equal 3
    End
    Describe 'group mock'
      Mock uname
        case "$1" in
          -r) echo "5.15.0-azure" ;;
          *) echo Linux ;;
        esac
      End
      It 'is seen'
        When call uname -r
        The output should equal "5.15.0-azure"
      End
      It 'is replaced'
        uname() { echo other; }
        When call uname -r
        The output should equal other
      End
    End
    It 'gone'
      When call uname
      The output should equal Linux
    End
    It 'exported function'
      exported() { echo exp; }
      export -f exported
      When call bash -c exported
      The output should equal exp
    End
  End
  Describe 'deep 1'
    v=1
    Describe 'deep 2'
      v=2
      Context 'deep 3'
        v="$v-3"
        Describe 'deep 4'
          Describe 'deep 5'
            v="$v-5"
            BeforeEach 'v="$v-b"'
            It 'sees it'
              The variable v should equal "2-3-5-b"
            End
          End
        End
      End
    End
    It 'is old'
      The variable v should equal 1
    End
  End
  Describe 'eval of a cut out function'
    eval "$(sed -n '/^heredoc_fn()/,/^}/p' ./parts/linux/cse_helpers.sh)"
    It 'works'
      When call heredoc_fn cut
      The output should equal "tabbed cut"
    End
    It 'works in a body'
      eval "$(sed -n '/^print_args()/,/}$/p' ./parts/linux/cse_helpers.sh)"
      When call print_args 1
      The output should equal "[1]"
    End
  End
End
