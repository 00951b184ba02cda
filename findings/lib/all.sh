#!/usr/bin/env bash
# Runs all findings, or those given by name, and prints a line each: name, ok, changed or failed, seconds.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- *.sh
worst=0
for finding in "$@"; do
  finding=${finding%.sh}
  SECONDS=0
  printed=$("$PWD/$finding.sh" 2>&1)
  case $? in 0) result=ok;; 1) result=changed;; *) result=failed;; esac
  printf '%-28s %-8s %4d s\n' "$finding" "$result" "$SECONDS"
  [ $result = ok ] || { worst=1; printf '%s\n' "$printed" | sed 's/^/  /'; }
done
exit $worst
