#!/usr/bin/env bash
# Moves money between accounts forever, five times a second: the sum over all accounts never changes, in no transaction.
set -euo pipefail
while true; do
  from=$((RANDOM % 100 + 1)) to=$((RANDOM % 100 + 1)) amount=$((RANDOM % 50 + 1))
  ending=COMMIT
  [ $((RANDOM % 10)) -eq 0 ] && ending=ROLLBACK
  psql --quiet --set ON_ERROR_STOP=1 <<SQL
BEGIN;
UPDATE accounts SET balance = balance - $amount WHERE id = $from;
UPDATE accounts SET balance = balance + $amount WHERE id = $to;
INSERT INTO transfers (source, target, amount) VALUES ($from, $to, $amount);
INSERT INTO notes (transfer, content) VALUES (currval('transfers_id_seq'), 'moved $amount');
$ending;
SQL
  sleep 0.2
done
