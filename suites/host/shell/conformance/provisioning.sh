# Specs of a provisioning script, as in a large suite.
write_product() {
  mkdir -p "$SHELLSPEC_WORKDIR/src"
  cat > "$SHELLSPEC_WORKDIR/src/cse.sh" <<'EOF'
#!/bin/bash
ERR_GPU=84
PRODUCT_ARGS="$*"
install_driver() {
  local -r version="$1"
  local tmp
  tmp=$(mktemp -d)
  echo "installing ${version}"
  systemctl stop nvidia || return "$ERR_GPU"
  apt_get_install 20 30 300 "nvidia-${version}" || exit $ERR_GPU
  rm -rf "$tmp"
  INSTALLED=$version
}
other() { echo other; }
${__SOURCED__:+return}
echo "main ran with $*"
install_driver 1
EOF
  chmod +x "$SHELLSPEC_WORKDIR/src/cse.sh"
}
write_product
PRODUCT="$SHELLSPEC_WORKDIR/src/cse.sh"

Describe 'heredocs'
  It 'succeeded: a heredoc can end the body'
    When call cat "$PRODUCT"
    The output should include 'ERR_GPU=84'
    cat > "$SHELLSPEC_WORKDIR/last" <<'EOF'
some text
EOF
  End
  It 'succeeded: the heredoc of a mock can end the body of a function'
    curl() {
      cat <<EOF
{"a": "$1"}
EOF
    }
    When call curl b
    The output should equal '{"a": "b"}'
  End
  It 'succeeded: a comment can end the body'
    When call true
    The status should be success
    # the end
  End
  It 'succeeded: body in several shapes'
    When call echo a \
      b   c
    The output should \
      equal 'a b c' # told
    if true; then
      for i in 1 2; do
        case $i in
          1) : ;;
          *) x=$i ;;
        esac
      done
    fi
    The variable x should equal 2
  End
  write_in_group() {
    cat > "$1" <<EOF
group $GROUP_VALUE
EOF
  }
  GROUP_VALUE=5
  cat > "$SHELLSPEC_WORKDIR/group" <<EOF
direct $GROUP_VALUE
EOF
  It 'succeeded: heredocs of the group'
    write_in_group "$SHELLSPEC_WORKDIR/fn"
    When call cat "$SHELLSPEC_WORKDIR/group" "$SHELLSPEC_WORKDIR/fn"
    The line 1 of output should equal 'direct 5'
    The line 2 of output should equal 'group 5'
    The lines of output should equal 2
  End
End

Describe 'product'
  Include "$PRODUCT" one two
  setup() { FIXTURE=$(mktemp -d); echo x > "$FIXTURE/file"; }
  cleanup() { rm -rf "$FIXTURE"; }
  BeforeEach 'setup'
  AfterEach 'cleanup'
  systemctl() { echo "systemctl $*"; }
  apt_get_install() { echo "apt $4"; }
  It 'succeeded: function mocks and variables' bash
    When call install_driver 550.1
    The status should be success
    The line 1 of stdout should equal 'installing 550.1'
    The line 2 of stdout should equal 'systemctl stop nvidia'
    The third line of output should equal 'apt nvidia-550.1'
    The variable INSTALLED should equal 550.1
    The variable PRODUCT_ARGS should equal 'one two'
    The path "$FIXTURE/file" should be file
    The contents of file "$FIXTURE/file" should equal x
  End
  It 'succeeded: exit in run' bash
    apt_get_install() { return 100; }
    When run install_driver 550.1
    The status should equal "$ERR_GPU"
    The output should include installing
    The variable INSTALLED should be undefined
  End
  It 'FAILED: exit in call'
    apt_get_install() { return 100; }
    When call install_driver 550.1
    The status should equal "$ERR_GPU"
    The output should include installing
  End
  Describe 'with a failing systemctl'
    systemctl() { echo "broken $*" >&2; return 5; }
    It 'succeeded: returns the code' bash
      When call install_driver 2
      The status should eq 84
      The stderr should equal 'broken stop nvidia'
      The output should not include apt
    End
  End
  It 'succeeded: run script' bash
    Mock systemctl
      echo "mocked $1"
      exit 3
    End
    When run script "$PRODUCT" a b
    The status should equal 84
    The output should include 'main ran with a b'
    The output should include 'mocked stop'
  End
  It 'succeeded: run source' bash
    When run source "$PRODUCT" x
    The status should be success
    The output should include 'main ran with x'
    The output should include 'apt nvidia-1'
  End
  It 'succeeded: a function cut out'
    eval "$(sed -n '/^other()/,/}/p' "$PRODUCT")"
    When call other
    The output should equal other
  End
  Describe 'hook strings'
    BeforeEach 'eval "$(sed -n "/^other()/,/}/p" "$PRODUCT")"; CUT=1; export CUT'
    AfterEach 'unset CUT; [ -z "${CUT-}" ]'
    It 'succeeded: inline statements'
      The variable CUT should be exported
      skipped=1
      The variable skipped should equal 1
    End
  End
End

Describe 'rows'
  IMAGE=jammy
  Parameters
    "$IMAGE" 'a b' $((1 + 1)) # first
    focal "c" 3

    'it''s' "\"q\"" ''
  End
  It "succeeded: row $1"
    shift
    When call printf '%s|' "$@"
    The output should be defined
    The value "$#" should equal 2
  End
End

Describe 'overrides'
  It 'succeeded: command'
    command() { [ "$2" = missing ] && return 1; builtin command "$@"; }
    check() { if command -v "$1" > /dev/null; then echo yes; else echo no; fi; }
    When call check missing
    The output should equal no
  End
  It 'succeeded: echo and read and eval' bash
    echo() { builtin echo "E $*"; }
    read() { builtin read "$@"; }
    code() { local line; read -r line < "$PRODUCT"; echo "$line"; }
    When call code
    The output should equal 'E #!/bin/bash'
  End
  It 'succeeded: date and timeout'
    date() { echo 2024; }
    timeout() { shift; "$@"; }
    code() { timeout 5 date +%s; }
    When call code
    The output should equal 2024
  End
  It 'succeeded: Mock with a dash and exported variables'
    export VISIBLE=1
    HIDDEN=1
    Mock dpkg-query
      echo "v=${VISIBLE-} h=${HIDDEN-} $*"
    End
    code() { (dpkg-query -W x) | cat; bash -c 'dpkg-query y'; }
    When call code
    The line 1 of output should equal 'v=1 h= -W x'
    The line 2 of output should equal 'v=1 h= y'
  End
End

Describe 'overrides of a group' bash
  eval() { echo "eval $*"; }
  builtin_like() { eval "$1"; }
  printf() { builtin printf "$@"; }
  It 'succeeded: eval'
    When call builtin_like 'rm -rf /'
    The output should equal 'eval rm -rf /'
    false || :
    if false; then :; fi
  End
End

Describe 'more mocks'
  It 'succeeded: the last command of a mock is its status'
    Mock judge
      [ "$1" = good ]
    End
    both() { judge good; echo "good $?"; judge bad; echo "bad $?"; bash -c 'judge bad'; echo "child $?"; }
    When call both
    The line 1 of output should equal 'good 0'
    The line 2 of output should equal 'bad 1'
    The line 3 of output should equal 'child 1'
  End
  It 'succeeded: a mock that reads stdin and fails'
    Mock jq
      cat
      echo "parse error" >&2
      false
    End
    code() { echo '{"a":1}' | jq -r .a || echo "failed $?"; }
    When call code
    The output should include '{"a":1}'
    The output should include 'failed 1'
    The stderr should equal 'parse error'
  End
  It 'succeeded: a mock with case, variables and a here-document'
    Mock az
      # account
      case "$1 $2" in
        "account show")
          cat <<JSON
{"id": "$3"}
JSON
          ;;
        *)
          sub="$2"
          echo "unknown $sub" >&2
          exit 2
          ;;
      esac
    End
    code() { az account show 5; az vm list; echo $?; }
    When call code
    The line 1 of output should equal '{"id": "5"}'
    The line 2 of output should equal 2
    The stderr should equal 'unknown list'
  End
  It 'succeeded: a mock sees no function or variable of the spec'
    secret=1
    helper() { echo helped; }
    Mock sudo
      if [ "$1" = -E ]; then shift; fi
      "$@" 2> /dev/null || echo "no $1"
    End
    Mock teller
      echo "$secret-x ${secret}.y" "$secret"
    End
    code() { sudo -E helper; teller; }
    When call code
    The line 1 of output should equal 'no helper'
    The line 2 of output should equal '-x .y '
  End
  It 'succeeded: xargs, find -exec and env find a mock'
    Mock notify
      echo "notified $*"
    End
    code() { echo a | xargs notify; env notify b; command notify c; nohup notify d 2> /dev/null; }
    When call code
    The output should include 'notified a'
    The output should include 'notified b'
    The output should include 'notified c'
  End
End

Describe 'retry and time'
  retrycmd() {
    local retries=$1 wait=$2 timeout=$3; shift 3
    local i
    for i in $(seq 1 "$retries"); do
      timeout "$timeout" "$@" && break
      local code=$?
      if [ "$i" -eq "$retries" ]; then
        echo "gave up after $i: $code" >&2
        return "$code"
      fi
      sleep "$wait"
    done
  }
  It 'succeeded: a command that times out'
    When call retrycmd 2 0 0.1 sleep 5
    The status should equal 124
    The stderr should equal 'gave up after 2: 124'
  End
  It 'succeeded: timeout does not run a function mock'
    fn() { :; }
    When call retrycmd 1 0 1 fn
    The status should equal 127
    The stderr should include 'gave up after 1: 127'
  End
  It 'succeeded: calls are counted in a file'
    sleep() { echo "sleep $1" >> "$SHELLSPEC_WORKDIR/sleeps"; }
    timeout() { shift; "$@"; }
    : > "$SHELLSPEC_WORKDIR/sleeps"
    When call retrycmd 3 7 1 false
    The status should equal 1
    The stderr should be defined
    The lines of contents of file "$SHELLSPEC_WORKDIR/sleeps" should equal 2
    The line 2 of contents of file "$SHELLSPEC_WORKDIR/sleeps" should equal 'sleep 7'
  End
End

Describe 'nounset'
  set -u
  It 'succeeded: the runtime works under nounset'
    code() { echo "${X-none}"; }
    When call code
    The output should equal none
    The variable X should be undefined
    The variable Y[1] should be undefined
  End
  It 'succeeded: unset in run' bash
    code() { echo "$NOPE"; }
    When run code
    The status should be failure
    The stderr should include 'NOPE: unbound variable'
  End
  It 'FAILED: unset in call ends the example'
    code() { echo "$NOPE"; }
    When call code
    The status should be failure
    The stderr should include unbound
  End
End

Describe 'control flow'
  It 'succeeded: code redirects for good'
    redirected() { exec 2>&1; echo err >&2; }
    When run redirected
    The output should equal err
  End
End

Describe 'group state' bash
  cd "$SHELLSPEC_WORKDIR" || exit
  umask 077
  export GROUP_EXPORT=1
  local group_local=2
  shopt -s nullglob
  It 'succeeded: cwd, options, locals'
    When call pwd
    The output should equal "$SHELLSPEC_WORKDIR"
    The variable group_local should equal 2
    touch here
    The path here should be file
  End
  It 'succeeded: a file of an earlier example of the group stays'
    The path "$SHELLSPEC_WORKDIR/here" should be file
  End
  Describe 'nested'
    group_local=3
    cd / || exit
    It 'succeeded: a nested group changes variables and the working directory'
      The variable group_local should equal 3
      where=$PWD
      The variable where should equal /
    End
  End
  It 'succeeded: after the nested group the outer state is back'
    The variable group_local should equal 2
    The value "$PWD" should equal "$SHELLSPEC_WORKDIR"
  End
End
It 'succeeded: state of a group is gone after the group'
  The variable group_local should be undefined
  The variable GROUP_EXPORT should be undefined
End
