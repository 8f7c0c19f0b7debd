Describe 'strict script'
  It 'runs as a script'
    get_value() { echo never; }
    When run script ./parts/linux/strict.sh a
    The output should include "script ran with 1 args: a"
    The status should equal 127
    The stderr should include "get_value"
  End
  It 'runs as a source with a mock'
    get_value() { echo "val $1"; }
    When run source ./parts/linux/strict.sh a
    The output should include "value=val a"
    The status should equal 7
  End
  Describe 'included'
    Include ./parts/linux/strict.sh
    It 'has functions only'
      get_value() { echo "v"; }
      When call strict_main z
      The output should equal "value=v"
    End
    It 'fails on nothing'
      get_value() { :; }
      When run strict_main z
      The status should equal 5
    End
    It 'default'
      The variable NEEDS should equal default
    End
  End
  It 'source in the evaluated function'
    f() { __SOURCED__=1 . ./parts/linux/strict.sh; set +eu; echo "sourced $NEEDS"; }
    When run f
    The output should equal "sourced default"
  End
End
Describe 'intercept'
  Intercept begin finish
  __begin__() { given=$1; helper() { echo "mocked helper for $given"; }; }
  __finish__() { echo "finishing"; }
  It 'replaces'
    When run source ./parts/linux/main.sh arg
    The output should equal "start arg
mocked helper for arg
finishing
end"
  End
  It 'exits'
    When run source ./parts/linux/main.sh arg bad
    The status should equal 42
    The output should not include end
  End
End
% GREETING: "hello"
%const NUMBER: 42
Describe 'directives'
  It 'const'
    The value "$GREETING $NUMBER" should equal "hello 42"
  End
  It 'text'
    text() {
      %text
      #|one $HOME
      #|  two
    }
    When call text
    The output should equal 'one $HOME
  two'
  End
  It 'text expand'
    who=me
    text() {
      %text:expand
      #|one $who
    }
    When call text
    The output should equal 'one me'
  End
  It 'text piped'
    text() { %text | tr a-z A-Z
      #|abc
    }
    When call text
    The output should equal ABC
  End
  It 'putsn'
    f() {
      %puts a b
      %putsn c
      %- d
      %= e
    }
    When call f
    The entire output should equal 'a bc
de
'
  End
  It 'printf'
    f() {
      %printf '%05d\n' 42
    }
    When call f
    The output should equal 00042
  End
End
Describe 'matchers'
  Path data-file=/tmp/strict_spec.data
  It 'alias'
    touch /tmp/strict_spec.data
    The path data-file should be exist
    The path data-file should be empty file
    rm /tmp/strict_spec.data
  End
  It 'satisfy'
    is_even() { [ $(($is_even % 2)) -eq 0 ]; }
    bigger() { [ "$bigger" -gt "$1" ]; }
    When call echo 42
    The output should satisfy is_even
    The output should satisfy bigger 41
    The output should not satisfy bigger 43
  End
  It 'result'
    count_words() { echo "$1" | wc -w | tr -d ' '; }
    When call echo a b c
    The result of function count_words should equal 3
    The result of "count_words()" should be successful
  End
  It 'assert'
    When call true
    Assert [ -d /usr ]
    Assert test 1 -eq 1
  End
  It 'negations'
    When call echo hello
    The output should not include bye
    The output should not equal ""
    The output should not start with x
    The output should not match pattern 'x*'
    The status should not be failure
  End
  It 'match pattern'
    When call echo "v1.2.3"
    The output should match pattern 'v[0-9].*'
    The output should match pattern 'a|v1*|b'
    The output should not match pattern 'v1'
  End
  It 'numbers and names'
    The value 123 should be valid number
    The value abc_1 should be valid funcname
    The value 1abc should not be valid funcname
    The value "" should be blank
    The value "x" should be present
  End
  It 'links and pipes'
    ln -s /nonexistent "$SHELLSPEC_WORKDIR/l"
    mkfifo "$SHELLSPEC_WORKDIR/p"
    mkdir "$SHELLSPEC_WORKDIR/d"
    The path "$SHELLSPEC_WORKDIR/l" should be symlink
    The path "$SHELLSPEC_WORKDIR/p" should be pipe
    The dir "$SHELLSPEC_WORKDIR/d" should be empty directory
    The path /dev/null should be character device
  End
End
Describe 'hooks'
  log="$SHELLSPEC_WORKDIR/log"
  BeforeAll 'echo all >"$log"'
  AfterAll 'rm -f "$log"'
  BeforeEach 'echo each >>"$log"' 'state=ready'
  AfterEach 'echo after >>"$log"'
  It 'one'
    The variable state should equal ready
    The contents of file "$log" should equal "all
each"
  End
  It 'two'
    The contents of file "$log" should equal "all
each
after
each"
  End
  Describe 'call hooks'
    BeforeCall 'echo before'
    AfterCall 'echo afterwards'
    It 'are output'
      When call echo now
      The output should equal "before
now
afterwards"
    End
  End
  Describe 'run hooks'
    AfterRun 'echo "var=$made"'
    It 'see what the subshell made'
      mk() { made=yes; }
      When run mk
      The output should equal "var=yes"
    End
  End
End
Describe 'guards'
  It 'skips only where there is a reason'
    [ -d /usr ] || Skip 'no usr'
    The value a should equal a
  End
End
Describe 'statements around'
  for name in a b; do
    declare "made_$name=1"
  done
  if true; then
    choice=yes
  fi
  It 'loops in groups'
    The variable made_a should equal 1
    The variable choice should equal yes
  End
  It 'cleanup afterwards'
    local tmp
    tmp=$(mktemp -d)
    echo x >"$tmp/f"
    When call cat "$tmp/f"
    The output should equal x
    rm -rf "$tmp"
  End
  It 'loops over expectations'
    When call printf 'a\nb\nc\n'
    for letter in a b c; do
      The output should include "$letter"
    done
  End
  It 'continued lines'
    When call printf '%s ' \
      one \
      two
    The output \
      should equal "one two "
  End
  It 'dump'
    When call echo dumped
    Dump
    The output should equal dumped
  End
End
