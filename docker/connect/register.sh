#!/bin/sh
# PUT is idempotent: it creates the connector, or gives it this configuration.
set -eu
curl --fail-with-body --silent --show-error --request PUT --header "Content-Type: application/json" \
  --data @/shop.json http://connect:8083/connectors/shop/config > /dev/null
echo "The connector shop is registered."
