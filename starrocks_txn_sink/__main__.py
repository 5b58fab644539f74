"""`python -m starrocks_txn_sink …` is `starrocks-txn-sink …`."""

import sys

from starrocks_txn_ops.cli import main

if __name__ == "__main__":
    sys.exit(main())
