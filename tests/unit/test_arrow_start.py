"""Arrow's first array without pandas, and a pandas that comes later."""

from __future__ import annotations

import subprocess
import sys

_START = "import sys\nimport starrocks_txn_sink.writer.assembling, starrocks_txn_sink.sink.sink\nimport pyarrow as pa\n"


def _run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_driver_and_workers_do_not_load_pandas() -> None:
    assert _run(f"{_START}pa.array(['a']); print('pandas' in sys.modules)") == "False"


def test_arrow_takes_objects_of_a_pandas_that_was_imported_later() -> None:
    later = "import pandas as pd; print(pa.array(pd.Series([1.0, float('nan')])).null_count, pd.__loader__.name)"
    assert _run(_START + later) == "1 pandas"


def test_arrow_takes_objects_of_a_pandas_that_was_there_before() -> None:
    after = "print(pa.array(pd.Series([1.0, float('nan')])).null_count)"
    assert _run(f"import pandas as pd\n{_START}{after}") == "1"
