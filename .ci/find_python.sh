#!/usr/bin/env bash
# Print a Python 3.11 or 3.12 that can make virtual environments: $PYTHON if given, else the first found.
set -euo pipefail

can_be_used() {
    # Run, not only looked up: version managers put launchers on PATH for versions that are not installed.
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' >/dev/null 2>&1
}

for python in ${PYTHON:-python3.11 python3.12 python3}; do
    if can_be_used "$python"; then
        echo "$python"
        exit 0
    fi
done

found="$("${PYTHON:-python3}" --version 2>/dev/null)" || found=""
cat >&2 <<EOF
Python 3.11 or 3.12 with its venv module is needed; found: ${found:-nothing} (${PYTHON:-python3}).
Install one, then run make again (or name it: make PYTHON=/path/to/python3.12 ...):
  Debian, Ubuntu:  apt install python3.11 python3.11-venv   (or python3.12 python3.12-venv)
  macOS:           brew install python@3.12
  any system:      pyenv install 3.12
EOF
exit 1
