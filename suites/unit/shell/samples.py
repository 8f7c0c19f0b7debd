"""Shell code for tests of coverage."""

from __future__ import annotations

SCRIPT = """\
#!/bin/bash
# a comment
choose() {
  if [ "$1" = left ]; then
    echo left
  else
    echo right
  fi
  cat <<TEXT
not code
TEXT
}
"""
