#!/usr/bin/env bash
# Writes .env with a new random password for everything that has one. Refuses to overwrite: volumes keep old passwords.
set -euo pipefail
cd "$(dirname "$0")"
target="${1:-.env}"
if [ -e "$target" ]; then
  echo "$target is there already; 'docker compose down --volumes' and remove it for new passwords." >&2
  exit 1
fi
secret() { head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }
umask 077
for name in POSTGRES_PASSWORD STARROCKS_PASSWORD STARROCKS_SINK_PASSWORD GRAFANA_PASSWORD; do
  echo "$name=$(secret)"
done > "$target"
echo "Wrote $target. Next: docker compose up --build --detach"
