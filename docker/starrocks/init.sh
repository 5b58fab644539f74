#!/usr/bin/env bash
# Sets root's password, creates the tables, and a user `sink` with what the sink needs. May run again and again.
set -euo pipefail
as_root() { mysql --host starrocks --port 9030 --user root "$@"; }
if MYSQL_PWD='' as_root --execute 'SELECT 1' > /dev/null 2>&1; then
  MYSQL_PWD='' as_root --execute "SET PASSWORD FOR 'root' = PASSWORD('$STARROCKS_PASSWORD')"
fi
touch /state/root-has-a-password # for start.sh
export MYSQL_PWD="$STARROCKS_PASSWORD"
as_root < /tables.sql
as_root <<SQL
CREATE USER IF NOT EXISTS 'sink' IDENTIFIED BY '$STARROCKS_SINK_PASSWORD';
ALTER USER 'sink' IDENTIFIED BY '$STARROCKS_SINK_PASSWORD';
GRANT SELECT, INSERT, UPDATE, DELETE, ALTER ON ALL TABLES IN DATABASE shop TO USER 'sink';
GRANT CREATE TABLE ON DATABASE shop TO USER 'sink';
GRANT OPERATE ON SYSTEM TO USER 'sink';
SQL
