# Subjects, modifiers and matchers. The name of an example begins with its verdict.

text() { printf 'alpha beta\n\ngamma\n\n'; }
both() {
  echo to-out
  echo to-err >&2
  return "${1:-0}"
}
status() { return "$1"; }

Describe 'subjects'
  It 'succeeded: output and stdout lose their trailing newlines'
    When call text
    The output should equal 'alpha beta

gamma'
    The stdout should end with gamma
  End

  It 'succeeded: entire output keeps trailing newlines'
    When call text
    The entire output should end with 'gamma

'
  End

  It 'succeeded: error and stderr'
    When call both
    The error should equal to-err
    The stderr should equal to-err
    The entire error should equal 'to-err
'
    The output should be defined
  End

  It 'succeeded: line and word without a subject refer to output'
    When call text
    The line 1 should equal 'alpha beta'
    The word 3 should equal gamma
  End

  It 'succeeded: value'
    The value 'a b' should equal 'a b'
  End

  It 'succeeded: variables, elements, whole arrays' bash
    array=(one two)
    declare -A map=([key]=value)
    empty=()
    The variable array should equal one
    The variable array[1] should equal two
    The variable 'array[@]' should equal 'one two'
    The variable map[key] should equal value
    The variable 'empty[@]' should be undefined
    The variable no_such should be undefined
  End

  It 'succeeded: a variable that is set but empty'
    nothing=
    The variable nothing should be defined
    The variable nothing should equal ''
  End

  It 'succeeded: path, file, dir and directory'
    The path /etc should be exist
    The file /etc/passwd should be file
    The dir /etc should be directory
    The directory /etc should be exist
  End

  It 'succeeded: articles are ignored'
    When call text
    The first line of the output should equal 'alpha beta'
    The path /etc should be a directory
  End

  It 'FAILED: an unknown subject'
    The thing should equal x
  End

  It 'FAILED: a subject without its argument'
    The variable should equal x
  End

  It 'succeeded: words of a sentence may be values of variables'
    subject=output
    When call text
    The "$subject" should start with alpha
    The line $((1 + 2)) of output should equal gamma
  End
End

Describe 'modifiers'
  It 'succeeded: a modifier may come after its subject with of'
    When call text
    The word 2 of line 1 of output should equal beta
    The output line 1 word 2 should equal beta
  End

  It 'succeeded: ordinals'
    When call text
    The second word of output should equal beta
    The 3rd line of output should equal gamma
    The twentieth line of output should be undefined
  End

  It 'succeeded: a blank line in the middle is set, but a line beyond the end is not'
    When call text
    The line 2 of output should equal ''
    The line 4 of output should be undefined
  End

  It 'succeeded: lines'
    When call text
    The lines of output should equal 3
    The lines of entire output should equal 4
  End

  It 'succeeded: length counts characters'
    The length of value 'äöü' should equal 3
  End

  It 'succeeded: contents and entire contents'
    printf 'one\ntwo\n\n' >"$SHELLSPEC_WORKDIR/file"
    The contents of file "$SHELLSPEC_WORKDIR/file" should equal 'one
two'
    The entire contents of file "$SHELLSPEC_WORKDIR/file" should end with 'two

'
    The line 2 of contents of file "$SHELLSPEC_WORKDIR/file" should equal two
  End

  It 'succeeded: the contents of a missing file are unset'
    The contents of file "$SHELLSPEC_WORKDIR/missing" should be undefined
    The contents of file "$SHELLSPEC_WORKDIR/missing" should not include x
  End

  It 'succeeded: contents are read when the expectation runs'
    echo early >"$SHELLSPEC_WORKDIR/moment"
    The contents of file "$SHELLSPEC_WORKDIR/moment" should equal early
    echo late >"$SHELLSPEC_WORKDIR/moment"
    The contents of file "$SHELLSPEC_WORKDIR/moment" should equal late
    rm "$SHELLSPEC_WORKDIR/moment"
    The file "$SHELLSPEC_WORKDIR/moment" should not be exist
  End

  upper() {
    tr a-z A-Z
    echo "[$1][$2][$3]"
  }
  complain() { echo complaint >&2; }

  It 'succeeded: result of a function'
    When call both 3
    The result of function upper should equal 'TO-OUT
[to-out
][to-err
][3]'
  End

  It 'succeeded: result with brackets'
    When call both
    The result of "upper()" should include TO-OUT
    The result of function upper should be successful
  End

  It 'succeeded: result of a function that fails is unset'
    When call both
    The result of function false should be undefined
  End

  It 'WARNED: result of a function that writes to stderr'
    When call both
    The result of function complain should equal ''
  End

  It 'FAILED: an unknown modifier'
    The paragraph 1 of output should equal x
  End
End

Describe 'text matchers'
  It 'succeeded: equal and eq'
    The value abc should equal abc
    The value abc should eq abc
    The value abc should not equal 'abc '
  End
  It 'FAILED: not equal'
    The value abc should not equal abc
  End
  It 'succeeded: include, start with, end with are literal'
    The value 'a*c [x]' should include '*c ['
    The value 'a*c [x]' should start with 'a*'
    The value 'a*c [x]' should end with '[x]'
    The value 'abc' should not include '*'
    The value 'a' should include ''
  End
  It 'FAILED: include'
    The value abc should include x
  End
  It 'FAILED: start with'
    The value abc should start with b
  End
  It 'FAILED: end with'
    The value abc should end with b
  End
  It 'succeeded: match pattern matches the whole subject'
    The value abc should match pattern 'a*'
    The value abc should match pattern 'a?c'
    The value abc should match pattern 'x|a[bx]c'
    The value abc should match pattern '[!x]bc'
    The value abc should not match pattern 'b'
    The value 'a
c' should match pattern 'a*c'
    The value 'a*c' should match pattern 'a[*]c'
    The value abc should not match pattern 'a[*]c'
    The value a7 should match pattern 'a[[:digit:]]'
    The value x should not match pattern ''
  End
  It 'FAILED: match pattern, backslash does not escape'
    The value 'a*c' should match pattern 'a\*c'
  End
  It 'FAILED: match pattern'
    The value abc should match pattern 'b*'
  End
End

Describe 'state matchers'
  It 'succeeded: be success and be failure'
    When call status 0
    The status should be success
    The status should not be failure
  End
  It 'FAILED: be success'
    When call status 1
    The status should be success
  End
  It 'FAILED: be failure'
    When call status 0
    The status should be failure
  End
  It 'succeeded: defined, undefined, present, blank'
    full=x empty=
    The variable full should be defined
    The variable full should be present
    The variable empty should be defined
    The variable empty should be blank
    The variable gone should be undefined
    The variable gone should be blank
    The variable gone should not be present
  End
  It 'FAILED: be defined'
    The variable gone should be defined
  End
  It 'FAILED: be undefined'
    full=x
    The variable full should be undefined
  End
  It 'FAILED: be present'
    empty=
    The variable empty should be present
  End
  It 'FAILED: be blank'
    full=x
    The variable full should be blank
  End
  It 'succeeded: exported and readonly'
    export out=1
    readonly fixed=1
    plain=1
    export bare_out
    readonly bare_fixed
    The variable bare_out should be exported
    The variable bare_fixed should be readonly
    The variable out should be exported
    The variable fixed should be readonly
    The variable plain should not be exported
    The variable plain should not be readonly
  End
  It 'FAILED: be exported'
    plain=1
    The variable plain should be exported
  End
  It 'FAILED: be exported works only with variables'
    The value x should be exported
  End
  It 'succeeded: valid number and valid funcname'
    The value 0123 should be valid number
    The value 12a should not be valid number
    The value a_1 should be valid funcname
    The value 1a should not be valid funcname
  End
End

Describe 'path matchers'
  prepare() {
    cd "$SHELLSPEC_WORKDIR" && rm -rf tree && mkdir -p tree/empty tree/full && cd tree || return
    : >empty-file
    echo text >full/file
    ln -s full/file link
    mkfifo pipe
    chmod 755 full/file
    chmod u+s,g+s empty-file
  }
  BeforeEach 'prepare'

  It 'succeeded: all path matchers'
    The file full/file should be exist
    The file full/file should exist
    The file nowhere should not exist
    The file full/file should be file
    The file full should be directory
    The file link should be symlink
    The file pipe should be pipe
    The file full/file should be readable
    The file full/file should be writable
    The file full/file should be executable
    The file empty-file should be empty file
    The file empty should be empty directory
    The file empty should be empty dir
    The file full should not be empty directory
    The file full/file should not be empty file
    The file /dev/null should be character device
    The file /dev/null should not be block device
    The file pipe should not be socket
  End

  It 'succeeded: a link matches like its target, and a dangling link like a missing file'
    ln -s nowhere dangling
    ln -s empty to-empty
    ln -s empty-file to-file
    ln -s pipe to-pipe
    The file dangling should be symlink
    The file dangling should not be exist
    The file dangling should not be file
    The file dangling should not be directory
    The file dangling should not be readable
    The file dangling should not be empty file
    The contents of file dangling should be undefined
    The file to-empty should be symlink
    The file to-empty should be directory
    The file to-empty should be empty directory
    The file to-file should be symlink
    The file to-file should be file
    The file to-file should be empty file
    The file to-file should has setuid
    The file to-pipe should be pipe
    The file full/file should not be symlink
    The contents of file link should equal text
  End

  It 'succeeded: a directory with an entry of any kind is not empty'
    mkdir with-hidden with-dots with-link with-folder with-pipe with-star
    : >with-hidden/.a
    : >with-dots/..a
    ln -s nowhere with-link/dangling
    mkdir with-folder/.a
    mkfifo with-pipe/a
    : >'with-star/*'
    The file with-hidden should not be empty directory
    The file with-dots should not be empty directory
    The file with-link should not be empty directory
    The file with-folder should not be empty dir
    The file with-pipe should not be empty directory
    The file with-star should not be empty directory
    cd empty
    The file . should be empty directory
    The file .. should not be empty directory
  End

  It 'succeeded: an empty file is a regular file without a byte'
    echo >line
    The file line should not be empty file
    The file empty should not be empty file
    The file empty-file should not be empty directory
    The file pipe should not be empty file
    The file nowhere should not be empty file
    The file nowhere should not be empty directory
    The file /dev/null should not be empty file
  End

  It 'succeeded: a path does not match other kinds'
    python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
    The file socket should be socket
    The file socket should be exist
    The file socket should not be file
    The file socket should not be pipe
    The file pipe should not be file
    The file pipe should not be directory
    The file full should not be file
    The file /dev/null should not be file
    The file empty-file should not be executable
    The file nowhere should not be writable
    The file nowhere should not be symlink
  End

  It 'succeeded: a path may come from any subject'
    When call echo full
    The output should be directory
    The output should not be file
    The output should not be empty directory
    The value nowhere should not be exist
  End

  It 'succeeded: setuid and setgid'
    The file empty-file should has setuid
    The file empty-file should has setgid flag
    The file full/file should not has setuid
    chmod u-s empty-file
    The file empty-file should not has setuid
    chmod u+s,g-s empty-file
    The file empty-file should not has setgid
  End

  It 'FAILED: not be exist'
    The file full/file should not be exist
  End
  It 'FAILED: be empty directory'
    The file full should be empty directory
  End
  It 'succeeded: an alias'
    ln full/file full/a=b
    Path here=full/a=b
    File there=nowhere
    The path here should be exist
    The contents of file here should equal text
    The file there should not be exist
  End
  It 'succeeded: any value may be a path'
    place=full/file
    When call echo full
    The variable place should be file
    The output should be directory
    The line 1 of output should not be file
    The contents of variable place should equal text
  End
  It 'FAILED: a value is the path of a directory and not of a file'
    The value full should be file
  End
  It 'FAILED: be dir is not a matcher'
    The file full should be dir
  End
  It 'FAILED: be exists is not a matcher'
    The file full should be exists
  End
End

Describe 'satisfy'
  is_long() { [ "${#is_long}" -ge "$1" ]; }
  from_stdin() { [ "$(cat)" = abc ]; }
  is_unset() { [ -z "${is_unset+x}" ]; }

  It 'succeeded: the subject is in a variable and on stdin'
    The value abc should satisfy is_long 3
    The value abc should satisfy from_stdin
    is_long=long
    The variable is_long should satisfy is_long 4
    The value abc should not satisfy is_long 4
  End
  It 'succeeded: with modifiers'
    When call text
    The word 2 of line 1 of output should satisfy is_long 4
    The status should satisfy is_long 1
    The stderr should not satisfy is_long 1
    The entire output should satisfy is_long 19
  End
  It 'succeeded: satisfy works with all subjects'
    abc=abc
    prints() { printf '%s\n' "$abc"; }
    prints >"$SHELLSPEC_WORKDIR/abc"
    The variable abc should satisfy from_stdin
    The contents of file "$SHELLSPEC_WORKDIR/abc" should satisfy from_stdin
    The entire contents of file "$SHELLSPEC_WORKDIR/abc" should satisfy from_stdin
    The result of function prints should satisfy from_stdin
    The contents of file /no/such should satisfy is_unset
  End
  It 'succeeded: satisfy accepts a function name that is not a variable name' bash
    from-stdin() { from_stdin; }
    The value abc should satisfy from-stdin
  End
  It 'succeeded: the variable of an unset subject is unset'
    is_unset=1
    The variable gone should satisfy is_unset
    The value '' should not satisfy is_unset
  End
  It 'FAILED: satisfy'
    The value abc should satisfy is_long 4
  End
End

Describe 'matchers of the spec itself'
  shellspec_syntax 'shellspec_matcher_regexp'
  shellspec_matcher_regexp() {
    shellspec_matcher__match() {
      SHELLSPEC_EXPECT="$1"
      [ "${SHELLSPEC_SUBJECT+x}" ] || return 1
      [[ $SHELLSPEC_SUBJECT =~ $SHELLSPEC_EXPECT ]]
    }
    shellspec_matcher__failure_message() { shellspec_putsn "expected: $1 match $2"; }
    shellspec_matcher__failure_message_when_negated() { shellspec_putsn "expected: $1 not match $2"; }
    shellspec_syntax_param count [ $# -eq 1 ] || return 0
    shellspec_matcher_do_match "$@"
  }

  It 'succeeded: a custom matcher' bash
    The value abc123 should regexp '^[a-z]+[0-9]+$'
    The value abc should not regexp '[0-9]'
  End
  It 'FAILED: a custom matcher with a wrong argument count'
    The value abc should regexp a b
  End
  It 'FAILED: a custom matcher with a wrong argument count, negated'
    The value abc should not regexp a b
  End

  shellspec_syntax 'shellspec_matcher_be_longer_than'
  shellspec_syntax_compound 'shellspec_matcher_be'
  shellspec_syntax_chain 'shellspec_matcher_be_longer'
  shellspec_matcher_be_longer_than() {
    shellspec_matcher__match() {
      SHELLSPEC_EXPECT=$1
      [ "${#SHELLSPEC_SUBJECT}" -gt "$1" ]
    }
    shellspec_matcher__failure_message() { shellspec_putsn "$1 is not longer than $2"; }
    shellspec_matcher__failure_message_when_negated() { shellspec_putsn "$1 is longer than $2"; }
    shellspec_syntax_param count [ $# -eq 1 ] || return 0
    shellspec_syntax_param 1 is number "$1" || return 0
    shellspec_matcher_do_match "$@"
  }
  shellspec_syntax_alias 'shellspec_matcher_outgrow' 'shellspec_matcher_be_longer_than'
  shellspec_syntax_alias 'shellspec_subject_text' 'shellspec_subject_value'

  It 'succeeded: a custom matcher of several words'
    The value abc should be longer than 2
    The value abc should not be longer than 3
    The value abc should be present
  End
  It 'succeeded: a matcher does not leave its subject in a variable of the spec'
    SHELLSPEC_SUBJECT=long
    The variable gone should not be longer than 2
  End
  It 'FAILED: an argument that is not a number'
    The value abc should not be longer than 4x
  End
  It 'FAILED: a custom matcher of several words'
    The value abc should be longer than 3
  End
  It 'FAILED: a custom matcher of several words with too many'
    The value abc should not be longer than 3 4
  End
  It 'succeeded: an alias of a matcher works'
    The value abc should outgrow 2
  End
  It 'succeeded: an alias of a subject works'
    The text abc should equal abc
    The length of the text abc should equal 3
    The text text should not equal value
    The value text should equal text
  End
  It 'FAILED: an alias of a subject with another value'
    The text abc should equal abd
  End
End

Describe 'sentences'
  It 'FAILED: an unknown matcher'
    The value a should resemble b
  End
  It 'FAILED: an unknown matcher, negated'
    The value a should not resemble b
  End
  It 'FAILED: an unknown state, negated'
    The value a should not be friendly
  End
  It 'FAILED: an unknown comparison, negated'
    The value a should not start from b
  End
  It 'FAILED: valid number without be'
    The value 1 should valid number
  End
  It 'FAILED: too many arguments'
    The value a should equal a b
  End
  It 'FAILED: too few arguments'
    The value a should equal
  End
  It 'succeeded: should not passes on an unset subject'
    The variable gone should not equal x
    The variable gone should not include x
    The line 9 of output should not start with x
  End
  It 'FAILED: a failed expectation does not stop the body'
    The value a should equal b
    marker=reached
    The variable marker should equal reached
  End
  It 'succeeded: a string may span lines'
    The value 'one
two' should equal 'one
two'
  End
End

Describe 'subjects of the spec itself' bash
  shellspec_syntax 'shellspec_subject_upper'
  shellspec_subject_upper() {
    shellspec_syntax_param count [ $# -ge 1 ] || return 0
    SHELLSPEC_SUBJECT=${1^^}
    shift
    shellspec_syntax_dispatch modifier "$@"
  }
  shellspec_syntax 'shellspec_subject_nothing'
  shellspec_subject_nothing() {
    unset SHELLSPEC_SUBJECT
    shellspec_syntax_dispatch modifier "$@"
  }
  It 'succeeded: a custom subject'
    The upper abc should equal ABC
  End
  It 'FAILED: a custom subject with another value'
    The upper abc should equal abc
  End
  It 'succeeded: a custom subject with modifiers'
    The second word of the upper 'a b' should equal B
    The upper 'a b' word 1 should equal A
    The length of upper abc should equal 3
  End
  It 'succeeded: a custom subject that is unset'
    The nothing should be undefined
  End
  It 'FAILED: a custom subject with another number of arguments'
    The upper should equal ABC
  End
  It 'FAILED: an undefined custom subject'
    The lower abc should equal abc
  End
End

Describe 'lines of a value' bash
  It 'succeeded: the last line break ends a line'
    A=$'a\n' B=$'a\n\n\nb\n\n' C='' D=$'\n'
    The lines of variable A should equal 1
    The lines of variable B should equal 5
    The lines of the variable C should equal 0
    The variable D lines should equal 1
    The line 1 of variable D should equal ''
    The lines of variable NONE should be undefined
    The lines of value $'a\n\n' should equal 2
  End
End
