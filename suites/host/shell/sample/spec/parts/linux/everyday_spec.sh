Describe 'everyday habits'
  outer_var=outer
  setup_file() { echo "content $1" > "$SHELLSPEC_WORKDIR/file_$1"; }
  Describe 'with includes and hooks'
    BeforeEach 'setup_file a' 'setup_file b'
    AfterEach 'rm -f "$SHELLSPEC_WORKDIR"/file_*'
    It 'a and b'
      When call cat "$SHELLSPEC_WORKDIR/file_a" "$SHELLSPEC_WORKDIR/file_b"
      The output should equal "content a
content b"
    End
    It 'negations on missing file'
      The contents of file "$SHELLSPEC_WORKDIR/none" should not include x
      The file "$SHELLSPEC_WORKDIR/none" should not be exist
    End
  End
  Describe 'redefinition order'
    tool() { echo group; }
    It 'first'
      When call tool
      The output should equal group
    End
    tool() { echo regroup; }
    It 'second'
      When call tool
      The output should equal regroup
    End
  End
  It 'function with local -r and return in loop'
    f() { local -r k=v; for i in 1 2 3; do [ $i = 2 ] && return 4; done; }
    When call f
    The status should equal 4
  End
  It 'When run with args having spaces and globs'
    show() { printf '<%s>' "$@"; }
    When run show "a b" '*' "$outer_var" '$x'
    The output should equal '<a b><*><outer><$x>'
  End
  It 'backslash continuation'
    show() { printf '<%s>' "$@"; }
    When call show a \
      b \
      "c d"
    The output should equal \
      '<a><b><c d>'
  End
  It 'comment after When'
    When call echo x # a comment
    The output should equal x # other
  End
  It 'The value of empty var'
    empty=
    The variable empty should be defined
    The variable empty should be blank
    The variable empty should equal ''
    The variable nothere should be undefined
    The variable nothere should not be defined
    The variable nothere should be blank
  End
  It 'status subject forms'
    f() { return 2; }
    When call f
    The status should be failure
    The status should not be success
    The status should not equal 0
    The status should equal 2
  End
  It 'uses set -e function in run'
    f() { set -e; [ "$1" = ok ]; echo passed; }
    When run f bad
    The status should equal 1
    The output should equal ''
  End
  It 'uses eval'
    When call eval 'x=5; echo $x; (exit 3)'
    The output should equal 5
    The status should equal 3
    The variable x should equal 5
  End
  It 'path forms'
    mkdir -p /opt/azure/x; echo hi > /opt/azure/x/f; chmod 755 /opt/azure/x/f
    The path /opt/azure/x/f should be file
    The file /opt/azure/x/f should be executable
    The file "/opt/azure/x/f" should be exist
    The directory "/opt/azure/x" should be exist
    The dir "/opt/azure/x" should not be empty directory
    The contents of path /opt/azure/x/f should equal hi
    The contents of the file /opt/azure/x/f should equal hi
    The line 1 of contents of the file /opt/azure/x/f should equal hi
    The length of contents of file /opt/azure/x/f should equal 2
    rm -rf /opt/azure/x
  End
  It 'errors and outputs'
    f() { echo o1; echo e1 >&2; echo o2; echo e2 >&2; }
    When call f
    The line 2 of output should equal o2
    The line 1 of error should equal e1
    The line 2 of stderr should equal e2
    The stderr should include e
    The stderr should not include o1
  End
  Describe 'sourced in hooks'
    load() { . ./parts/linux/lib.sh; }
    BeforeEach load
    It 'has it'
      The variable FROM_LIB should equal "lib value"
    End
  End
  Describe 'exports'
    export EXPORTED=yes
    It 'to children'
      When call sh -c 'echo $EXPORTED'
      The output should equal yes
    End
    It 'with prefix'
      f() { echo "$A-$(sh -c 'echo $A')"; }
      When call env A=1 sh -c 'echo $A'
      The output should equal 1
    End
  End
  Describe 'dates and clocks'
    date() { echo "2024-01-01"; }
    It 'mocks date'
      f() { echo "now $(date +%s)"; }
      When call f
      The output should equal "now 2024-01-01"
    End
  End
  It 'large stderr'
    f() { for ((i=0;i<20000;i++)); do echo "line $i" >&2; done; }
    When call f
    The lines of stderr should equal 20000
  End
  It 'ansi'
    When call printf '\033[31mred\033[0m\n'
    The output should include red
    The output should start with $'\033'
  End
End
