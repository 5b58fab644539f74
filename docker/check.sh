#!/usr/bin/env bash
# Starts the whole pipeline, tries what README.md promises, and says PASS or FAIL for each step. Takes about ten minutes, most
# of it for images. Leaves the containers running; `docker compose down --volumes` removes them.
set -euo pipefail
cd "$(dirname "$0")"
failed=0

step() { # step NAME SECONDS COMMAND...: tries the command until it succeeds or the time is over
  local name="$1" until=$((SECONDS + $2)) said=""
  shift 2
  while ! said="$("$@" 2>&1)"; do
    if [ "$SECONDS" -ge "$until" ]; then
      echo "FAIL  $name: $(tail -n 1 <<< "$said")"
      failed=1
      return 0
    fi
    sleep 3
  done
  echo "PASS  $name"
}

ask() { # ask SQL: one answer of StarRocks as root
  docker compose exec -T -e MYSQL_PWD="$STARROCKS_PASSWORD" starrocks \
    mysql -h 127.0.0.1 -P 9030 -u root --batch --skip-column-names -e "$1"
}

new_enough() { [ "$(printf '%s\n' 2.23.1 "$(docker compose version --short | tr -d v)" | sort -V | head -n 1)" = 2.23.1 ]; }
healthy() { [ "$(docker compose ps --format '{{.Health}}' "$1")" = healthy ]; }
page() { curl --fail --silent --max-time 5 "$1" > /dev/null; }
scraped() { curl --fail --silent "http://127.0.0.1:${PROMETHEUS_PORT:-9090}/api/v1/query?query=up" | grep -q '"1"\]'; }
whole() { # the sum over all accounts never changes
  [ "$(ask 'SELECT count(*), sum(balance) FROM shop.accounts')" = "$(printf '100\t%s' "$SUM")" ]
}
watched() { for _ in 1 2 3 4 5 6 7 8 9 10; do whole || return 1; sleep 1; done; }
moving() { local before; before="$(ask 'SELECT count(*) FROM shop.transfers')"; sleep 5; [ "$(ask 'SELECT count(*) FROM shop.transfers')" -gt "$before" ]; }

step "Docker Compose 2.23.1 or newer" 1 new_enough
[ -e .env ] || ./make-env.sh
set -a && . ./.env && set +a
step "images are built and containers start" 1 docker compose up --build --detach --quiet-pull
for service in postgres kafka connect starrocks driver prometheus alertmanager grafana; do
  step "$service is healthy" 420 healthy "$service"
done
SUM="$(docker compose exec -T postgres psql --username shop --dbname shop --tuples-only --no-align --command 'SELECT sum(balance) FROM accounts')"
step "all accounts are in StarRocks" 180 whole
step "transfers arrive" 60 moving
step "the sum never changes" 1 watched
step "the sink's page answers" 30 page "http://127.0.0.1:${METRICS_PORT:-9464}/"
step "Prometheus scrapes the sink" 60 scraped
step "Alertmanager answers" 30 page "http://127.0.0.1:${ALERTMANAGER_PORT:-9093}/-/healthy"
step "Grafana answers" 30 page "http://127.0.0.1:${GRAFANA_PORT:-3000}/api/health"
docker compose kill driver > /dev/null 2>&1 && docker compose start driver > /dev/null 2>&1
step "the driver comes back after a kill" 180 healthy driver
step "transfers arrive again" 120 moving
docker compose stop starrocks > /dev/null 2>&1 && sleep 10 && docker compose start starrocks > /dev/null 2>&1
step "StarRocks comes back after a stop" 300 healthy starrocks
step "transfers arrive after that" 300 moving
step "the sum never changed" 1 watched
[ "$failed" = 0 ] && echo "Everything works." || echo "Something failed: docker compose logs"
exit "$failed"
