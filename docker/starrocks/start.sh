#!/usr/bin/env bash
# Starts the all-in-one image. At each start its director logs in as root, with MYSQL_PWD, and shuts everything down when it is
# refused. Before init.sh has run root has no password, afterwards it has one.
set -euo pipefail
if [ -e /state/root-has-a-password ]; then
  export MYSQL_PWD="$STARROCKS_PASSWORD"
fi
cd /data/deploy
exec ./entrypoint.sh
