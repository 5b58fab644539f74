from __future__ import annotations

import pytest

from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.sources.kafka.options import BalancedOptions

GOOD = {"kafka.bootstrap.servers": "h:1", "subscribe": "a, b"}


def test_options_are_read_whatever_their_case_and_kafkas_are_handed_on() -> None:
    options = BalancedOptions.read(
        GOOD | {"MAX_ROWS": "10", "max_bytes": "1e6", "failOnDataLoss": "FALSE", "kafka.security.protocol": "SSL"}
    )
    assert (options.topics, options.pattern, options.from_start) == (("a", "b"), None, True)
    assert (options.headers, BalancedOptions.read(GOOD | {"includeHeaders": "True"}).headers) == (False, True)
    assert (options.max_rows, options.max_bytes, options.fail_on_data_loss) == (10, 1_000_000, False)
    assert (options.config["bootstrap.servers"], options.config["security.protocol"]) == ("h:1", "SSL")
    assert (options.config["enable.auto.commit"], options.config["auto.offset.reset"]) == (False, "error")


def test_a_pattern_and_a_start_at_the_end() -> None:
    settings = {"kafka.bootstrap.servers": "h:1", "subscribePattern": "t.*", "startingOffsets": "latest"}
    options = BalancedOptions.read(settings)
    assert (options.pattern, options.topics, options.from_start) == ("t.*", (), False)


def test_a_start_by_partition_or_by_time() -> None:
    options = BalancedOptions.read(GOOD | {"startingOffsets": '{"a": {"0": 17, "1": -2}, "b": {"0": -1}}'})
    assert options.starts == {("a", 0): 17, ("a", 1): -2, ("b", 0): -1}
    assert BalancedOptions.read(GOOD | {"startingTimestamp": "1700000000000"}).start_time == 1_700_000_000_000


def test_lanes_fetch_more_at_once_unless_the_user_says_how_much() -> None:
    options = BalancedOptions.read(GOOD | {"kafka.queued.min.messages": "7"})
    assert options.config["fetch.message.max.bytes"] == 262_144
    assert (options.lane_config["fetch.message.max.bytes"], options.lane_config["queued.min.messages"]) == (
        2 << 20,
        "7",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_rows": "many"}, "max_rows is 'many'"),
        ({"max_row": "5"}, "no option max_row"),
        ({"startingOffsets": "middle"}, "earliest or latest"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "not JSON with offsets"),
        ({"startingOffsets": '{"a": 3}'}, "not JSON with offsets"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "both given"),
        ({"startingTimestamp": "now"}, "startingTimestamp is 'now'"),
        ({"subscribePattern": "t.*"}, "exactly one of"),
        ({"subscribe": "", "subscribePattern": "t.*\n"}, "end of a line"),
        ({"kafka.auto.offset.reset": "earliest"}, "reader itself sets kafka.auto.offset.reset"),
        ({"idle_timeout": "-1"}, "above zero"),
        ({"includeHeaders": "yes"}, "includeheaders is 'yes'"),
        ({"kafka.bootstrap.servers": None, "subscribe": "a"}, "bootstrap.servers is missing"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str | None], message: str) -> None:
    settings = {name: value for name, value in (GOOD | options).items() if value is not None}
    with pytest.raises(OptionError, match=message):
        BalancedOptions.read(settings)
