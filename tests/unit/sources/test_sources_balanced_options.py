from __future__ import annotations

import pytest

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.sources.kafka.options import BalancedOptions

GOOD = {"kafka.bootstrap.servers": "h:1", "subscribe": "a, b"}


def test_options_are_read_whatever_their_case_and_kafkas_are_handed_on() -> None:
    found = BalancedOptions.read(
        GOOD | {"MAX_ROWS": "10", "max_bytes": "1e6", "failOnDataLoss": "FALSE", "kafka.security.protocol": "SSL"}
    )
    assert (found.topics, found.pattern, found.from_start) == (("a", "b"), None, True)
    assert (found.max_rows, found.max_bytes, found.fail_on_data_loss) == (10, 1_000_000, False)
    assert (found.config["bootstrap.servers"], found.config["security.protocol"]) == ("h:1", "SSL")
    assert (found.config["enable.auto.commit"], found.config["auto.offset.reset"]) == (False, "error")


def test_a_pattern_and_a_start_at_the_end() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "subscribePattern": "t.*", "startingOffsets": "latest"}
    found = BalancedOptions.read(given)
    assert (found.pattern, found.topics, found.from_start) == ("t.*", (), False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_rows": "many"}, "max_rows is 'many'"),
        ({"max_row": "5"}, "no option max_row"),
        ({"startingOffsets": "middle"}, "earliest or latest"),
        ({"subscribePattern": "t.*"}, "exactly one of"),
        ({"kafka.auto.offset.reset": "earliest"}, "reader itself sets kafka.auto.offset.reset"),
        ({"idle_timeout": "-1"}, "above zero"),
        ({"kafka.bootstrap.servers": None, "subscribe": "a"}, "bootstrap.servers is missing"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str | None], said: str) -> None:
    given = {name: value for name, value in (GOOD | options).items() if value is not None}
    with pytest.raises(OptionError, match=said):
        BalancedOptions.read(given)
