"""The lines that count as commands are the lines in bash's own trace."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import LocalRunner
from harness.shell.commands_of import code_lines, executed_lines
from harness.shell.coverage import Hits, merge, parse_trace
from harness.shell.warm_shell.pool import TRACE

if TYPE_CHECKING:
    from pathlib import Path

#: A script in which each line of code runs, except lines that end with `# no`.
SCRIPT = r"""#!/bin/bash
# comment
set -u
f() {
  local a=$1 \
    b=2
  echo "$a" \
    "$b" |
    cat |
    tr a b
}
g() (
  cd /
  :
)
f 1 &&
  g &&
  true
cat <<END
if this; then
$(echo one
echo two)
END
case $# in
  0)
    x=1
    ;;
  1) x=2 ;; # no
  *)
    x=3 ;; # no
esac
if [ "$x" = 1 ] &&
  [[ $x == 1 &&
     $x != 2 ]]; then
  y=$(
    echo a
    echo b
  )
elif false; then # no
  z=1 # no
else
  z=2 # no
fi
for i in 1 2 \
  3; do
  : "$i"
done
for ((i = 0; i < 2; i++)); do
  :
done
while read -r line; do
  echo "$line"
done < <(
  printf '%s\n' a b
)
arr=(
  one
  "$(echo three)"
)
((i++)) || true
until [ $i -gt 2 ]; do i=$((i + 1)); done
{
  echo x
} >/dev/null
! false
echo "multi
line"
trap 'echo bye' EXIT
declare -A m=(
  [a]=1
)
function named {
  echo named
}
z=$(
  named
)
if false; then
  echo # no
fi
eval 'echo first
echo second'
if false; then
  echo # no
fi
( echo sub
)
sed -e 's/a/b/' \
    -e 's/c/d/' \
    <<<"x
y"
printf '%s' "${none:-$(
  echo default)}"
export FOO="a
b"
if ! grep -q x <<<"y"; then echo no; fi
. "$LIBRARY"
from_library
"$LIBRARY"
cd /
unused() {
  echo # no
}
"""
LIBRARY = """#!/bin/bash
from_library() {
  echo "$PWD"
  return 0
}
[[ $0 == "$BASH_SOURCE" ]] &&
  echo "a script of its own"
"""


def test_coverage_counts_the_same_lines_as_the_bash_trace(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "my scripts"
    (folder / "traces").mkdir(parents=True)
    script, library = folder / "a:b.sh", folder / "library.sh"
    script.write_text(SCRIPT)
    library.write_text(LIBRARY)
    library.chmod(0o755)
    shutil.copy(TRACE, folder)
    env = {"BASH_ENV": str(folder / TRACE.name), "LIBRARY": str(library), "PATH": "/usr/bin:/bin"}

    done = LocalRunner().run(["bash", str(script)], timeout_s=20, env=env).check("the script")

    hits: Hits = {}
    for trace in (folder / "traces").iterdir():
        merge(hits, parse_trace(trace.read_text(), folder, [folder]))
    missed = {n for n, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# no")}
    assert executed_lines(SCRIPT, hits[str(script)]) == code_lines(SCRIPT) - missed
    assert missed <= code_lines(SCRIPT)
    assert executed_lines(LIBRARY, hits[str(library)]) == {3, 4, 6, 7}
    assert "+" not in done.stderr, "The trace was expected to leave the streams alone."


@pytest.mark.parametrize("options", ["", "set -e;", "set -u;"])
def test_code_runs_without_errors_if_the_coverage_trace_cannot_be_written(
    tmp_path: Path, options: str
) -> None:
    shutil.copy(TRACE, tmp_path)
    env = {"BASH_ENV": str(tmp_path / TRACE.name), "PATH": "/usr/bin:/bin"}

    done = LocalRunner().run(["bash", "-c", f"{options} echo out"], timeout_s=20, env=env)

    assert (done.exit_code, done.stdout, done.stderr) == (0, "out\n", "")
