"""Rules compared with the tables of the database at the start of a query."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from starrocks_txn_sink import SinkOptions, TableRules
from starrocks_txn_sink.errors import OptionError
from starrocks_txn_sink.options.table_rules import RuleSet
from starrocks_txn_sink.sink import rule_checks
from starrocks_txn_sink.sink.rule_checks import rules_for
from starrocks_txn_sink.sink.typed.tables import Tables
from starrocks_txn_sink.sink.typed.terms import TableTerms
from tests.support.log_records import records_of

RULES = RuleSet((TableRules(tables="custmers", metadata=["_op"]),))


def terms(*tables: str, **options: Any) -> TableTerms:
    settings = SinkOptions(load_url="http://h:1", query_url="mysql://h:2", database="shop", **options)
    return TableTerms(settings, {}, Tables(models=dict.fromkeys(tables, "DUP_KEYS")))


@pytest.mark.parametrize("changes", ["apply", "fail"])
def test_a_rule_that_is_almost_for_a_table_is_refused(changes: str) -> None:
    with pytest.raises(OptionError, match=r"A rule is for the tables custmers, .* Did you mean customers\?"):
        rules_for(RULES, terms("orders", "customers", schema_changes=changes))


def test_a_rule_for_a_table_that_may_come_is_told_at_each_start(caplog: pytest.LogCaptureFixture) -> None:
    rules_for(RULES, terms("orders", schema_changes="apply"))
    (record,) = records_of(caplog, "rules.unmatched")
    assert (record.levelno, "custmers" in record.getMessage()) == (logging.WARNING, True)


@pytest.mark.parametrize("changes", ["apply", "fail"])
def test_a_mask_waits_for_its_column_and_a_typo_is_refused(
    changes: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the rule the values of a column that comes would be there in clear."""
    rules = RuleSet((TableRules(tables="customers", mask={"email": "null"}),))
    for names, near in ((["id", "note"], None), (["id", "emial"], "emial")):
        columns = {"customers": [SimpleNamespace(name=name) for name in names]}
        monkeypatch.setattr(rule_checks, "_columns", lambda *_, columns=columns: columns)
        told = terms("customers", schema_changes=changes)
        if near is None:
            rules_for(rules, told)
            (record,) = records_of(caplog, "rules.unmatched")
            assert "email" in record.getMessage()
        else:
            with pytest.raises(OptionError, match=rf"names the column email, .* Did you mean {near}\?"):
                rules_for(rules, told)


def test_a_rule_for_no_table_is_refused_where_none_can_come_and_not_where_none_is_known() -> None:
    with pytest.raises(OptionError, match="A rule is for the tables custmers"):
        rules_for(RULES, terms("orders", schema_changes="fail"))
    rules_for(RULES, terms(schema_changes="fail"))
