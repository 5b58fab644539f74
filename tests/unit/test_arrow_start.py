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


def test_the_command_sync_does_not_load_pandas() -> None:
    """Its modules for settings come before the sink's, and some of them make arrays while they are imported."""
    assert _run("import starrocks_txn_ops.sync.command, sys; print('pandas' in sys.modules)") == "False"


def test_a_call_into_the_jvm_does_not_load_pandas_and_still_knows_numpy() -> None:
    """Spark's own question imports its helpers for tests, and pandas with them."""
    program = (
        "import sys, numpy as np; from starrocks_txn_sink import recommended_conf; recommended_conf(); "
        "from pyspark.sql import types as T; scalar, array = T.NumpyScalarConverter(), T.NumpyArrayConverter(); "
        "print([scalar.can_convert(value) for value in (1, 'a', np.int64(1), np.array([1]))], "
        "[array.can_convert(value) for value in (1, np.int64(1), np.array([1]), np.array([[1]]))], "
        "'pandas' in sys.modules, 'pyspark.testing' in sys.modules)"
    )
    assert _run(program) == "[False, False, True, False] [False, False, True, False] False False"
