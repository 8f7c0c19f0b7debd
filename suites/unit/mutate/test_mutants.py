"""Each operator plants its defect, and plants no change that has no effect."""

from __future__ import annotations

from harness.mutate.mutants import mutants_of
from harness.mutate.operators import Operator
from harness.shell.commands_of import parse


def planted(script: bytes) -> dict[bytes, Operator]:
    """Return the text of each mutant, and the operator that made it."""
    return {mutant.apply(script): mutant.operator for mutant in mutants_of(script)}


#: A script, one of its mutants, and the mutant's operator.
PLANTED = (
    ("set -e\na\n", ":\na\n", Operator.SHELL_OPTION),
    ("set -o pipefail\na\n", ":\na\n", Operator.SHELL_OPTION),
    ("set +o pipefail\na\n", ":\na\n", Operator.SHELL_OPTION),
    ("a\nb || true\n", "a\nb\n", Operator.FAILURE),
    ("f() {\n  while a; do\n    b || return\n  done\n}\n", "f() {\n  while a; do\n    b\n  done\n}\n", Operator.FAILURE),
    ("set -e\na || true\nb\n", "set -e\na\nb\n", Operator.FAILURE),
    ("a && b\nc\n", "a || b\nc\n", Operator.LIST),
    ("if a; b; then c; fi\n", "if true; then c; fi\n", Operator.CONDITION),
    ("if a; then c; elif b; then d; fi\n", "if a; then c; elif true; then d; fi\n", Operator.CONDITION),
    ('[ ! -e "$x" ] && b\nc\n', '[ -e "$x" ] && b\nc\n', Operator.NEGATION),
    ('if [ "$x" -lt 3 ]; then c; fi\n', 'if [ "$x" -le 3 ]; then c; fi\n', Operator.COMPARISON),
    ('if [ -z "$x" ]; then c; fi\n', 'if [ -n "$x" ]; then c; fi\n', Operator.COMPARISON),
    ("if [[ a = b && -e c && -e d ]]; then e; fi\n", "if [[ a = b && -e c ]]; then e; fi\n", Operator.CONDITION),
    ("while a; do b; done\n", "until a; do b; done\n", Operator.LOOP),
    ("while a; do break; done\n", "while a; do continue; done\n", Operator.LOOP),
    ("for ((i = 0; i < 3; i++)); do a; done\n", "for ((i = 0; i <= 3; i++)); do a; done\n", Operator.ARITHMETIC),
    ("rm -rf /x\na\n", ":\na\n", Operator.COMMAND),
    ("f() {\n  ((++n))\n  a\n}\n", "f() {\n  :\n  a\n}\n", Operator.COMMAND),
    ("mv /a /b\nc\n", "mv /b /a\nc\n", Operator.ARGUMENT_ORDER),
    ("retry 5 2 a\nb\n", "a\nb\n", Operator.WRAPPER),
    ("curl --max-time=10 u\n", "curl --max-time=11 u\n", Operator.NUMBER),
    ("x=$(cut -f1 f)\n", "x=$(cut -f2 f)\n", Operator.NUMBER),
    ("sleep 0.5\na\n", "sleep 1.5\na\n", Operator.NUMBER),
    ("chmod 0777 /f\na\n", "chmod 0700 /f\na\n", Operator.MODE),
    ("chmod +x /f\na\n", "chmod -x /f\na\n", Operator.MODE),
    ("install -g 100 a b\n", "install -g 101 a b\n", Operator.NUMBER),
    ("a >f\nb\n", "a >>f\nb\n", Operator.REDIRECTION),
    ("x=$(a 2>&1)\n", "x=$(a)\n", Operator.REDIRECTION),
    ("x=$(a 2>&1 >/dev/null)\n", "x=$(a >/dev/null 2>&1)\n", Operator.REDIRECTION),
    ("cat <<E >>f\nx\nE\n", "cat <<E >f\nx\nE\n", Operator.REDIRECTION),
    ("cat <<E >f\néé\n \ny\nE\n", "cat <<E >f\néé\n \nE\n", Operator.HERE_DOCUMENT),
    ("systemctl daemon-reload\nsystemctl restart a\n", "systemctl restart a\nsystemctl daemon-reload\n", Operator.ORDER),
    ("if a; then\n  exit 1\nfi\nrm -f x\n", "rm -f x\nif a; then\n  exit 1\nfi\n", Operator.ORDER),
    ("systemctl start a\nb\n", "systemctl start --no-block a\nb\n", Operator.UNIT),
    ("systemctl start --no-block a\nb\n", "systemctl start a\nb\n", Operator.ARGUMENT),
    ("a &\nwait\n", "a\nwait\n", Operator.BACKGROUND),
    ("x=${y:-d}\n", "x=d\n", Operator.DEFAULT),
    ("#!/bin/bash -eu\nx=${y:-}\n", "#!/bin/bash -eu\nx=${y}\n", Operator.DEFAULT),
    ("x=${y:-false}\n", "x=${y:-true}\n", Operator.DEFAULT),
    ('x=${x:-}\nf "$x"\n', "x=${x:-}\nf $x\n", Operator.QUOTES),
    ('x=a\nx=${x:-b c}\nf "$x"\n', "x=a\nx=${x:-b c}\nf $x\n", Operator.QUOTES),
    ("a | grep b\n", "a\n", Operator.PIPELINE),
    ("x=a.b\n", 'x=""\n', Operator.ASSIGNMENT),
    ('x="²"\n', 'x=""\n', Operator.ASSIGNMENT),
    (f"x={'9' * 5000}\n", "x=0\n", Operator.ASSIGNMENT),
    (f"x=${{y:-{'9' * 5000}}}\n", "x=${y:-}\n", Operator.DEFAULT),
    ("x=false\n", "x=true\n", Operator.ASSIGNMENT),
    ("x=(a)\n", "x=()\n", Operator.ASSIGNMENT),
    ("f() {\n  a || return\n  b\n}\n", "f() {\n  a || return 0\n  b\n}\n", Operator.EXIT_CODE),
    ("f() {\n  a\n  return 0\n}\n", "f() {\n  a\n  return 1\n}\n", Operator.EXIT_CODE),
    ("f() {\n  a\n  b\n}\n", "f() {\n  return 0; a\n  b\n}\n", Operator.FUNCTION),
    ("case $x in\n  a) b ;;\n  *) c ;;\nesac\n", "case $x in\n\n  *) c ;;\nesac\n", Operator.CASE),
    ("case $x in\n  a) : ;;\n  *) c ;;\nesac\n", "case $x in\n\n  *) c ;;\nesac\n", Operator.CASE),
    ("curl -fsS u\n", "curl -sS u\n", Operator.OPTION),
    ("x=${y%.*}\n", "x=${y%%.*}\n", Operator.PATTERN),
    ("a | b | c\n", "a | c\n", Operator.PIPELINE),
    ("f() {\n  echo a\n}\nx=$(f)\n", "f() {\n  echo\n}\nx=$(f)\n", Operator.ARGUMENT),
    ("x=$(a b)\n", "x=\n", Operator.SUBSTITUTION),
    ('f "$@"\n', "f $@\n", Operator.QUOTES),
    ('"$@" && a\n', "$@ && a\n", Operator.QUOTES),
    ('a "$x"\n', "a $x\n", Operator.QUOTES),
    ("export A=b\n", "A=b\n", Operator.EXPORT),
    ("(cd a; b)\nc\n", "{ cd a; b; }\nc\n", Operator.SUBSHELL),
    ("(. a; b)\nc\n", "{ . a; b; }\nc\n", Operator.SUBSHELL),
    ("x=1\nf() {\n  local x\n  x=2\n}\nf\na $x\n", "x=1\nf() {\n  :\n  x=2\n}\nf\na $x\n", Operator.LOCAL),
    ("f() {\n  local x\n  x=2\n}\ng() {\n  f\n}\nh() {\n  g\n}\nx=1\nh\na $x\n",
     "f() {\n  :\n  x=2\n}\ng() {\n  f\n}\nh() {\n  g\n}\nx=1\nh\na $x\n", Operator.LOCAL),
    ("f() {\n  local x\n  x=2\n}\ng() {\n  while b $x; do\n    f\n  done\n}\ng\n",
     "f() {\n  :\n  x=2\n}\ng() {\n  while b $x; do\n    f\n  done\n}\ng\n", Operator.LOCAL),
    ('die() {\n  echo "$1" >&2\n  exit 1\n}\ndie a\nb\n', 'die() {\n  echo "$1" >&2\n  exit 1\n}\n:\nb\n', Operator.COMMAND),
    ('error() {\n  echo "$1" >&2\n  exit 1\n}\nerror a\nb\n', 'error() {\n  echo "$1" >&2\n  exit 1\n}\n:\nb\n', Operator.COMMAND),
)  # fmt: skip


#: A line of a script, and all mutants of this line, except the mutant without the line.
ALL = (
    ("sudo chmod -R 0644 f", "chmod -R 0644 f", "sudo chmod 0644 f", "sudo chmod -R f", "sudo chmod -R 0666 f",
     "sudo chmod -R 0644"),
    ("timeout 30 curl --retry 5 -fSo f u", "curl --retry 5 -fSo f u", "timeout 31 curl --retry 5 -fSo f u",
     "timeout 30 curl -fSo f u", "timeout 30 curl --retry 6 -fSo f u", "timeout 30 curl --retry 5 -So f u",
     "timeout 30 curl --retry 5 -fS u", "timeout 30 curl --retry 5 -fSo f"),
    ('retry 5 "$n" systemctl restart a', "systemctl restart a", 'retry 6 "$n" systemctl restart a',
     "retry 5 $n systemctl restart a", 'retry 5 "$n" systemctl a', 'retry 5 "$n" systemctl restart --no-block a',
     'retry 5 "$n" systemctl restart', 'retry 5 "$n" systemctl restart a &'),
    ("timeout 5 mv /a /b", "mv /a /b", "timeout 6 mv /a /b", "timeout 5 mv /b", "timeout 5 mv /b /a", "timeout 5 mv /a"),
    ("sudo grep -ivqx '^a$' f", "grep -ivqx '^a$' f", "sudo grep '^a$' f", "sudo grep -iqx '^a$' f", "sudo grep -ivq '^a$' f",
     "sudo grep -vqx '^a$' f", "sudo grep -ivqx f", "sudo grep -ivqx '^a' f", "sudo grep -ivqx 'a$' f", "sudo grep -ivqx '^a$'"),
    ("own --name a -n 5 --x -- y", "own a -n 5 --x -- y", "own -n 5 --x -- y", "own --name -n 5 --x -- y", "own --name a --x -- y",
     "own --name a -n 6 --x -- y", "own --name a -n 5 -- y", "own --name a -n 5 --x --"),
    ('own -1 5m "6"', 'own 5m "6"', 'own "6"', 'own -1 "6"', 'own -1 6m "6"', "own -1 5m"),
    ("/bin/sed -e s/a/b/ f", "/bin/sed f", "/bin/sed -e s/a/b/"),
    ("tar xvzf a -C b", "tar a -C b", "tar vzf a -C b", "tar xvf a -C b", "tar xvz a -C b", "tar a xvzf -C b", "tar xvzf -C b",
     "tar xvzf a", "tar xvzf a -C b &"),
    ("mkdir -m 0755 -p /a", "mkdir -p /a", "mkdir -m 0777 -p /a", "mkdir -m 0755 /a", "mkdir -m 0755 -p"),
    ("set -euo pipefail", "set -eo pipefail", "set -uo pipefail", "set -eu"),
    ("set -o errexit -o nounset", "set -o nounset", "set -o errexit"),
    ("A=1 B=2 c x", "B=2 c x", "A=1 c x", "A=1 B=2 c"),
    ("x=$(lspci -nn -d 10de:)", "x=", "x=$(lspci -d 10de:)", "x=$(lspci -n -d 10de:)", "x=$(lspci -nn)"),
    ("[[ -z $(systemctl --plain list-units) ]]", "[[ -n $(systemctl --plain list-units) ]]", '[[ -z "" ]]',
     "[[ -z $(systemctl --plain) ]]", "[[ -z $(systemctl --plain list-units &) ]]"),
    ("x=$(awk -F: '/é/ { print $10 $2 }' f)", "x=", "x=$(awk '/é/ { print $10 $2 }' f)", "x=$(awk -F: f)",
     "x=$(awk -F: '/é/ { print $11 $2 }' f)", "x=$(awk -F: '/é/ { print $10 $3 }' f)", "x=$(awk -F: '/é/ { print $10 $2 }')"),
    ('rm -f a*.log "$b"/*', 'rm a*.log "$b"/*', 'rm -f "$b"/*', 'rm -f a.log "$b"/*', "rm -f a*.log", 'rm -f a*.log "$b"/'),
    ("ctr image tag a b", "ctr tag a b", "ctr image a b", "ctr image a tag b", "ctr image tag b", "ctr image tag b a",
     "ctr image tag a", "ctr image tag a b &"),
    ("read -r x <f",),
    ('exit "3"', "exit 0", "exit 1"),
    ("exit $?", "exit 0"),
    ('if [ "$x" -eq 3 -a ! -f y ]; then b; fi', "if false; then b; fi", "if true; then b; fi", "if [ ! -f y ]; then b; fi",
     'if [ "$x" -ne 3 -a ! -f y ]; then b; fi', 'if [ "$x" -eq 3 -o ! -f y ]; then b; fi', 'if [ "$x" -eq 3 ]; then b; fi',
     'if [ "$x" -eq 3 -a -f y ]; then b; fi', 'if [ "$x" -eq 3 -a ! -f y ]; then :; fi'),
    ('if a && [ -n "$x" ] && [ "$y" -gt 2 ]; then b; fi', 'if [ -n "$x" ] && [ "$y" -gt 2 ]; then b; fi',
     'if [ "$y" -gt 2 ]; then b; fi', "if false; then b; fi", "if true; then b; fi", 'if a && [ "$y" -gt 2 ]; then b; fi',
     'if a || [ -n "$x" ] && [ "$y" -gt 2 ]; then b; fi', 'if a && [ -z "$x" ] && [ "$y" -gt 2 ]; then b; fi',
     'if a && [ -n "$x" ]; then b; fi', 'if a && [ -n "$x" ] || [ "$y" -gt 2 ]; then b; fi',
     'if a && [ -n "$x" ] && ! [ "$y" -gt 2 ]; then b; fi', 'if a && [ -n "$x" ] && [ "$y" -ge 2 ]; then b; fi',
     'if a && [ -n "$x" ] && [ "$y" -gt 2 ]; then :; fi'),
    ("[[ $x =~ ^a$ ]] && b", "! [[ $x =~ ^a$ ]] && b", "[[ $x =~ ^a ]] && b", "[[ $x =~ a$ ]] && b", "[[ $x =~ ^a$ ]] ; b",
     "[[ $x =~ ^a$ ]] || b"),
    ("[[ ! ($x = a && $y = b) ]] && c", "[[ ($x = a && $y = b) ]] && c", "[[ ! ($x != a && $y = b) ]] && c",
     "[[ ! ($x = a || $y = b) ]] && c", "[[ ! ($x = a && $y != b) ]] && c", "[[ ! ($x = a && $y = b) ]] ; c",
     "[[ ! ($x = a && $y = b) ]] || c"),
    ("! [ -e a ] && c", "[ -e a ] && c", "! [ -e a ] ; c", "! [ -e a ] || c"),
    ("[ a -nt b ] || c", "! [ a -nt b ] || c", "[ a -ot b ] || c", "[ a -nt b ]", "[ a -nt b ] && c"),
    ("((a % 2 == 0)) && b", "((a * 2 == 0)) && b", "((a % 2 != 0)) && b", "((a % 2 == 0)) ; b", "((a % 2 == 0)) || b"),
    ("n=$((n++ + 2))", "n=$((n-- + 2))", "n=$((n++ - 2))"),
    ("case $x in a*|b) c;; *d*) e;; *) log f;; esac", "case $x in *d*) e;; *) log f;; esac",
     "case $x in a|b) c;; *d*) e;; *) log f;; esac", "case $x in b) c;; *d*) e;; *) log f;; esac",
     "case $x in a*) c;; *d*) e;; *) log f;; esac", "case $x in a*|b) :;; *d*) e;; *) log f;; esac",
     "case $x in a*|b) c;; *) log f;; esac", "case $x in a*|b) c;; *d) e;; *) log f;; esac",
     "case $x in a*|b) c;; d*) e;; *) log f;; esac", "case $x in a*|b) c;; *d*) :;; *) log f;; esac"),
    ('for f in /a/*.sh; do . "$f"; done', 'for f in /a/.sh; do . "$f"; done', "for f in /a/*.sh; do :; done"),
    ('for x in a $y; do b "$x" "$1"; done', 'for x in $y; do b "$x" "$1"; done', 'for x in a; do b "$x" "$1"; done',
     "for x in a $y; do :; done", 'for x in a $y; do b "$1"; done', 'for x in a $y; do b "$1" "$x"; done',
     'for x in a $y; do b "$x"; done'),
    ("until a; do sleep 1; done", "while a; do sleep 1; done", "until a; do :; done", "until a; do sleep; done",
     "until a; do sleep 2; done"),
    ("x=''", "x=mutated"),
    ('x="$y"', 'x=""'),
    ('x="3"', "x=4"),
    ('x+=(a "b c")', 'x=(a "b c")', 'x+=( "b c")', "x+=(a)"),
    ("export PATH=$PATH:/a", "PATH=$PATH:/a", 'export PATH=""'),
    ("x=${y:=d}", "x=${y:=}"),
    ("x=${y-20}", "x=20", "x=${y-21}"),
    ("x=${y?}", "x=${y:-}"),
    ("x=${y:+d}",),
    ("x=${y%%.*}", "x=${y}", "x=${y%.*}"),
    ("x=${y/a*/b}", "x=${y}"),
    ("a >>f 2>&1", "a >f 2>&1", "a 2>&1 >>f", "a >>f"),
    ("x=$(a >/dev/null 2>&1)", "x=", "x=$(a 2>&1)", "x=$(a 2>&1 >/dev/null)"),
    ("a | tee f", "a | tee"),
    ("a | grep b && c", "a && c", "a | grep && c", "a | grep b ; c", "a | grep b || c"),
    ("a | sort | tail -n 1 | b", "a | sort | tail | b", "a | sort | tail -n 2 | b", "a | sort | tail -n 1"),
    ("x=$(y=1; a)", "x=", "x=$(y=2; a)", "x=$(y=1; :)"),
    ("a || { echo no; exit 1; }", "a", "a && { echo no; exit 1; }", "a || { echo no; :; }", "a || { echo no; exit 0; }"),
    ("f() { a || true; }", "f() { :; }", "f() { a; }"),
    ("f() { a || return 3; }", "f() { :; }", "f() { a; }", "f() { a && return 3; }", "f() { a || return 0; }",
     "f() { a || return 1; }"),
    ("own --a=b 5 '^c$'", "own 5 '^c$'", "own --a=b '^c$'", "own --a=b 6 '^c$'", "own --a=b '^c$' 5", "own --a=b 5"),
    ("cat <<E >f\n  # a\n  b\n\nE", "cat <<E >>f\n  # a\n  b\n\nE", "cat <<E >f\n  # a\n\nE"),
    ("set -e; a || echo no", ":; a || echo no", "set -e; a"),
    ("a || echo no",),
    ("[[ $x = a && $y -lt 3 ]] || c", "[[ $y -lt 3 ]] || c", "[[ $x != a && $y -lt 3 ]] || c", "[[ $x = a || $y -lt 3 ]] || c",
     "[[ $x = a ]] || c", "[[ $x = a && $y -le 3 ]] || c", "[[ $x = a && $y -lt 3 ]]", "[[ $x = a && $y -lt 3 ]] && c"),
    ('a "$(b c)"', "a", 'a ""', 'a "$(b)"'),
    ("case $x in a) b;; esac", "case $x in a) :;; esac"),
)  # fmt: skip


def test_each_mutation_operator_makes_the_expected_mutant() -> None:
    missing = [
        (before, after, operator.value)
        for before, after, operator in PLANTED
        if planted(before.encode()).get(after.encode()) is not operator
    ]
    assert missing == []


def test_each_sample_line_has_exactly_the_expected_mutants() -> None:
    found = {
        line: tuple(
            text.removesuffix("\nz\n")
            for text in (each.decode() for each in planted(f"{line}\nz\n".encode()))
            if text.endswith("\nz\n") and text != ":\nz\n"
        )
        for line, *_ in ALL
    }
    assert found == {line: tuple(defects) for line, *defects in ALL}


def test_each_mutation_operator_has_a_sample() -> None:
    assert {operator for _, _, operator in PLANTED} == set(Operator)


#: What a change concerns, a script, and the script after a change that has no effect.
SAME = (
    ("a message", 'log() {\n  echo "$*" >&2\n}\nlog "no disk"\n', 'log() {\n  echo "$*" >&2\n}\nlog\n'),
    ("a message that gets the output of a command", "a | logger hello\nb\n", "a | logger\nb\n"),
    ("a dollar that ends no line", "grep 'a\\$' f\n", "grep 'a\\' f\n"),
    ("a job that does not wait anyway", "systemctl start --no-block a\nb\n", "systemctl start --no-block --no-block a\nb\n"),
    ("the words of one that ends the run", 'die() {\n  echo "$1" >&2\n  exit 1\n}\ndie "no disk"\n',
     'die() {\n  echo "$1" >&2\n  exit 1\n}\ndie\n'),
    ("a last return 0 after what may fail", "f() {\n  a\n  return 0\n}\n", "f() {\n  a\n  :\n}\n"),
    ("another code for a failure", "f() {\n  a || return $?\n  b\n}\n", "f() {\n  a || return 1\n  b\n}\n"),
    ("a last exit 0", "a\nexit 0\n", "a\n:\n"),
    ("a last return 0", "f() {\n  x=1\n  return 0\n}\n", "f() {\n  x=1\n  :\n}\n"),
    ("quotes in [[", '[[ "$x" = a ]]\n', "[[ $x = a ]]\n"),
    ("quotes around a status", 'f "$?"\n', "f $?\n"),
    ("quotes around one word", 'x=a\nf "$x"\n', "x=a\nf $x\n"),
    ("quotes around words of an array", 'x=(a b)\nf "${x[@]}"\n', "x=(a b)\nf ${x[@]}\n"),
    ("local without another of the name", "f() {\n  local x=1\n  a $x\n}\n", "f() {\n  x=1\n  a $x\n}\n"),
    ("local for a name that is not used after the call", "f() {\n  local x=1\n  a $x\n}\ng() {\n  local x=2\n  f $x\n}\n",
     "f() {\n  x=1\n  a $x\n}\ng() {\n  local x=2\n  f $x\n}\n"),
    ("a local variable that nothing uses", "f() {\n  local x=1\n  a\n}\n", "f() {\n  local x=2\n  a\n}\n"),
    ("quotes around what the script itself gives", 'f() {\n  local x=$1\n  a "$x"\n}\n', "f() {\n  local x=$1\n  a $x\n}\n"),
    ("quotes around what the script itself reads", 'read -r x <f\na "$x"\n', "read -r x <f\na $x\n"),
    ("output in a local variable that nothing uses", "f() {\n  local x\n  x=$(a)\n  b\n}\n", "f() {\n  local x\n  x=\n  b\n}\n"),
    ("the order of what does the same to two files", "restorecon /usr/a\nrestorecon /usr/b\n", "restorecon /usr/b\nrestorecon /usr/a\n"),
    ("a filter of what is only shown", "a | grep b\nc\n", "a\nc\n"),
    ("a default that is not true either way", 'x=${y:-false}\n', "x=${y:-}\n"),
    ("a comment in a here document", "cat <<E >f\n# x\ny\nE\n", "cat <<E >f\ny\nE\n"),
    ("the order of redirections to nowhere", "a >/dev/null 2>&1\nb\n", "a 2>&1 >/dev/null\nb\n"),
    ("tracing that ends", "set +x\na\n", ":\na\n"),
    ("a check with another way", "if a; then\n  exit 1\nelse\n  b\nfi\nrm -f x\n", "rm -f x\nif a; then\n  exit 1\nelse\n  b\nfi\n"),
    ("a step before a choice", "if a; then\n  b\nfi\nrm -f x\n", "rm -f x\nif a; then\n  b\nfi\n"),
    ("noise", "grep a f 2>/dev/null\n", "grep a f\n"),
    ("a true that changes no status", "a || true\nb\n", "a\nb\n"),
    ("the order of folders", "mkdir /a/etcd\nmkdir /b/etcd\n", "mkdir /b/etcd\nmkdir /a/etcd\n"),
    ("the order of what has nothing in common", "cp /a /b\nldconfig\n", "ldconfig\ncp /a /b\n"),
    ("an empty default", "x=${y:-}\n", "x=${y}\n"),
    ("quotes around what users choose as one word", 'x=${x:-/a/b}\nf "$x"\n', "x=${x:-/a/b}\nf $x\n"),
    ("a return where the function ends", "f() {\n  a || return\n}\n", "f() {\n  a\n}\n"),
    ("not empty before what takes a number", 'f() {\n  [ -n "$1" ] && [ "$1" -gt 2 ]\n}\nif [ -n "$x" ] && [ "$x" -gt 2 ]; then\n  a\nfi\n',
     'f() {\n  [ -n "$1" ] && [ "$1" -gt 2 ]\n}\nif [ "$x" -gt 2 ]; then\n  a\nfi\n'),
    ("the order of what takes effect at the next start", "systemctl enable kubelet\nsystemctl start kubelet\n",
     "systemctl start kubelet\nsystemctl enable kubelet\n"),
    ("how something is printed that is only looked for", '[ -n "$(lspci -n -d 10de:)" ]\n', '[ -n "$(lspci -d 10de:)" ]\n'),
)  # fmt: skip


def test_change_without_an_effect_is_not_a_mutant() -> None:
    assert [why for why, script, same in SAME if same.encode() in planted(script.encode())] == []


def test_messages_are_mutated_only_on_request() -> None:
    script = b"a\necho hello world\nb\n"
    assert not any(m.line == 2 for m in mutants_of(script))
    assert any(m.line == 2 for m in mutants_of(script, messages=True))


def test_check_for_message_functions_is_fast_for_a_name_with_many_underscores() -> None:
    """An expression that tries each division of the underscores does not end here."""
    assert any(m.line == 2 for m in mutants_of(b"a\nlog" + b"_" * 99 + b"! x\nb\n"))


def test_mutants_are_different_and_can_be_parsed_and_are_in_the_order_of_the_script() -> None:
    """Any test would notice a mutant that bash can't parse."""
    compound = b'f() {\n  a "$(b "$c")" | while read -r x; do d; done >f\n}\n'
    for script in (compound, *(before.encode() for before, _, _ in PLANTED)):
        found = mutants_of(script)
        places = [(each.start, each.end) for each in found]
        assert places == sorted(places)
        texts = {each.apply(script) for each in found}
        assert len(texts) == len(found)
        assert [text for text in texts if parse(text).has_error] == []


def test_mutant_has_a_position_and_the_lines_that_execute_it() -> None:
    script = b"f() {\n  a ||\n    return 3\n  case $x in\n    b) c ;;\n    d) e ;;\n  esac\n}\n"
    by_operator = {m.operator: m for m in mutants_of(script)}
    assert by_operator[Operator.FAILURE].reached_by == {2}
    assert by_operator[Operator.EXIT_CODE].reached_by == {3}
    assert by_operator[Operator.CASE].reached_by == {4}
    assert by_operator[Operator.FAILURE].function == "f"
    ended = b"if a; then\n  case $x in\n    b) c ;;\n    d)\n      e ;;\n  esac\nfi"
    case = next(
        each for each in mutants_of(ended) if each.new == b"" and b"e ;;" not in each.apply(ended)
    )
    assert (case.line, case.last_line, case.column) == (4, 5, 1)
    [document] = [
        m for m in mutants_of(b"cat <<E >f\nx\nE\n") if m.operator is Operator.HERE_DOCUMENT
    ]
    assert (document.line, document.last_line) == (2, 2)
    [argument] = [m for m in mutants_of(b"a \\\n  b\nc\n") if m.operator is Operator.ARGUMENT]
    assert argument.reached_by == {1}
    change = "--- a/x.sh\n+++ b/x.sh\n"
    assert case.diff(ended, "x.sh").startswith(change)
    assert case.diff(ended, "x.sh").endswith(" fi\n\\ No newline at end of file\n")


def test_undecodable_bytes_and_unparsable_text_are_unchanged_in_mutants() -> None:
    odd = b"rm -f /x\na ${b:=(}\n"
    assert parse(odd).has_error
    assert any(m.apply(odd) == b":\na ${b:=(}\n" for m in mutants_of(odd))
    script = b"a \xff b\nc || exit 1\n"
    assert any(m.apply(script) == b"a \xff b\nc\n" for m in mutants_of(script))
