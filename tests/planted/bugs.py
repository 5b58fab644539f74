"""The planted bugs. A file is under `starrocks_txn_sink/`; tests are files under `tests/unit/`, or functions there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlantedBug:
    """In `file` the text `right`, which stands there once, becomes `wrong`; the `tests` fail then."""

    kind: str
    name: str
    file: str
    right: str
    wrong: str
    tests: str


BUGS = (
    # --- values ---
    PlantedBug(
        "values",
        "an integer one above its type passes",
        "rows/values/rules.py",
        "not minimum <= integer < 1 << bits - 1",
        "not minimum <= integer <= 1 << bits - 1",
        "rows/values/test_values_of_the_server.py rows/values/test_row_judgement.py",
    ),
    PlantedBug(
        "values",
        "a decimal more than the column's is rounded",
        "rows/values/rules.py",
        "if number.decimals > kind.scale:",
        "if number.decimals > kind.scale + 1:",
        "rows/values/test_values_of_the_server.py rows/values/test_row_judgement.py",
    ),
    PlantedBug(
        "values",
        "a DATE loses the time of the day",
        "rows/values/times.py",
        'if moment[10:] not in ("", " 00:00:00"):',
        "if not moment:",
        "rows/values/test_values_of_the_server.py rows/values/test_row_judgement.py",
    ),
    PlantedBug(
        "values",
        "elements of arrays are not judged",
        "rows/values/rules.py",
        '_inner(element_type, element, value, start, end, "an element that ")',
        "value.raw[start:end]",
        "rows/values/test_values_of_the_server.py rows/values/test_row_judgement.py",
    ),
    PlantedBug(
        "values",
        "a text of odd letters counts as hexadecimal digits",
        "rows/values/byte_texts.py",
        "return len(text) // 2 if _HEX.fullmatch(text) else None",
        "return len(text) // 2",
        "rows/values/test_row_judgement.py",
    ),
    PlantedBug(
        "values",
        "a narrower column takes the source's decimals",
        "rows/widening.py",
        "return other.name in _EXACT_BITS or other.scale > type_.scale",
        "return other.name in _EXACT_BITS",
        "writer/test_narrow_columns.py",
    ),
    # --- keys ---
    PlantedBug(
        "keys",
        "a further column of the table's key is taken",
        "sink/schema/source_plan.py",
        "extra = [name for name in own if name.lower() not in folded]",
        "extra = list[str]()",
        "sink/test_source_keys.py",
    ),
    PlantedBug(
        "keys",
        "the first key of a table passes",
        "sink/source_progress.py",
        "refusals = [(key, self.judge(key)) for key in keys]",
        "refusals = [(key, self.judge(key)) for key in keys if before]",
        "sink/test_source_keys.py",
    ),
    PlantedBug(
        "keys",
        "an update without its former key moves nothing",
        "sources/formats/declared_keys.py",
        "if names and name not in names and unknown.true_count:",
        "if names and name not in columns and unknown.true_count:",
        "sources/test_declared_keys.py",
    ),
    PlantedBug(
        "keys",
        "a delete with filled in values misses its row",
        "sources/formats/declared_keys.py",
        "for number in deletes.tolist() if extra else ():",
        "for number in deletes.tolist() if not extra else ():",
        "sources/test_declared_keys.py",
    ),
    PlantedBug(
        "keys",
        "the delete of a former row comes behind the new one",
        "assembler/rules/moved.py",
        "np.concatenate([2 * numbers + 1, 2 * at])",
        "np.concatenate([2 * numbers, 2 * at + 1])",
        "sources/test_declared_keys.py",
    ),
    PlantedBug(
        "keys",
        "the case of a key's column counts in old values",
        "sources/formats/row_changes.py",
        "keys = {name.lower() for name in names}",
        "keys = {*names}",
        "sources/test_maxwell.py::test_a_key_in_capitals_that_changes_takes_its_former_row_away",
    ),
    PlantedBug(
        "keys",
        "a tombstone whose delete is lost deletes nothing",
        "sources/formats/lone_tombstones.py",
        "return pa.array(~has_delete[count:])",
        "return pa.array(has_delete[count:] & False)",
        "writer/test_single_changes.py::test_a_tombstone_that_compaction_has_left_alone_deletes_the_row_of_its_key",
    ),
    # --- privacy ---
    PlantedBug(
        "privacy",
        "a former row is not masked",
        "sources/formats/column_rules.py",
        'return f"{front}{ruled_row(raw, rules)}"',
        'return f"{front}{raw}"',
        "sources/test_declared_keys.py",
    ),
    PlantedBug(
        "privacy",
        "a hash loses its salt",
        "sources/formats/column_rules.py",
        "hashlib.sha256((mask.text + content)",
        "hashlib.sha256(content",
        "sources/test_column_rules.py",
    ),
    PlantedBug(
        "privacy",
        "a rule for no table passes",
        "sink/rule_checks.py",
        "if rule.near or terms.options.schema_changes is not SchemaChanges.APPLY:",
        "if rule.near:",
        "sink/test_rule_checks.py",
    ),
    PlantedBug(
        "privacy",
        "a mask for a misspelt column waits",
        "sink/rule_checks.py",
        "if mismatch.near:",
        "if not mismatch:",
        "sink/test_rule_checks.py",
    ),
    PlantedBug(
        "privacy",
        "rows without a table keep their values",
        "sources/formats/column_rules.py",
        'pc.if_else(foreign, "{}", row)',
        "row",
        "sources/test_column_rules.py writer/test_ruled_lanes.py",
    ),
    PlantedBug(
        "privacy",
        "an error quotes a row's key unasked",
        "writer/value_checks.py",
        "if self.shows_keys:",
        "if place:",
        "writer/test_value_checks.py::test_only_an_error_that_may_quote_rows_has_the_key_of_its_row",
    ),
    PlantedBug(
        "privacy",
        "a mask may give different keys one value",
        "options/table_rules.py",
        "if mask is not None and mask.kind is not MaskKind.SHA256:",
        "if mask is not None and not mask.kind:",
        "options/test_table_rules.py",
    ),
    # --- order ---
    PlantedBug(
        "order",
        "open_timeout counts the time that the query was down",
        "assembler/rules/reading_clock.py",
        "max(0.0, min(now, began) - self.at)",
        "0.0",
        "assembler/test_reading_clock.py",
    ),
    PlantedBug(
        "order",
        "a transaction without a proof is released untold",
        "assembler/verified/rules.py",
        "trusted = judgement.trusted.tolist()",
        "trusted = judgement.trusted.tolist()[:0]",
        "assembler/test_sources_verified.py::test_rows_of_an_earlier_delivery_that_may_be_missing_are_waited_for",
    ),
    PlantedBug(
        "order",
        "rows of an incremental snapshot go in front",
        "assembler/verified/rules.py",
        "return order[is_snapshot], last[is_snapshot]",
        "return order[is_snapshot], last[is_snapshot] * 0",
        "assembler/test_sources_verified.py::test_rows_of_a_snapshot_wait_for_an_older_change_also_of_a_first_run",
    ),
    PlantedBug(
        "order",
        "rows behind the end of their transaction pass",
        "rows/segments.py",
        "(late := np.flatnonzero(~has_moved & is_start)).size",
        "(late := np.flatnonzero(~has_moved & is_start)).size < 0",
        "rows/test_segments.py",
    ),
    PlantedBug(
        "order",
        "rows that came in any order lose their seq",
        "rows/arrival.py",
        "np.lexsort((_ints(rows, SEQ), _ints(rows, POSITION), ranks[codes]))",
        "np.lexsort((-_ints(rows, SEQ), _ints(rows, POSITION), ranks[codes]))",
        "rows/test_arrival.py",
    ),
    PlantedBug(
        "order",
        "what no history proves is taken for a repeat",
        "assembler/rules/history.py",
        "if refused is not None and complete:",
        "if refused is not None and not complete:",
        "assembler/test_one_judge.py",
    ),
    PlantedBug(
        "order",
        "a BEGIN goes when the connector repeats what was before",
        "assembler/verified/rules.py",
        "counts, released = judgement.tally, judgement.classes.released",
        "counts, released = judgement.tally, judgement.settled",
        "assembler/test_new_sources.py",
    ),
    PlantedBug(
        "order",
        "a new source begins with the last delivery of a cut transaction",
        "assembler/verified/rules.py",
        "int(times[counts.code == counts.code[end]].min())",
        "int(times[counts.code == counts.code[end]].max())",
        "assembler/test_new_sources.py",
    ),
    PlantedBug(
        "order",
        "a delivery whose rows are not read yet is the old source's",
        "assembler/verified/deliveries.py",
        "first = delivery.begin if first < 0 else first",
        "first = delivery.begin",
        "assembler/test_new_sources.py",
    ),
    PlantedBug(
        "order",
        "a known id at another place is the same transaction",
        "assembler/verified/repeats.py",
        "(before != now) & (before != 0) & (now != 0)",
        "(before != now) & (before != 0) & (now == 0)",
        "assembler/test_new_sources.py",
    ),
    PlantedBug(
        "order",
        "two transactions of one id are told before what is in front of them",
        "assembler/verified/rules.py",
        "(foreign >= 0) & (sequence[foreign] < judgement.classes.upto)",
        "foreign >= 0",
        "assembler/test_new_sources.py",
    ),
    PlantedBug(
        "order",
        "a row younger than an END is of its delivery",
        "assembler/verified/deliveries.py",
        "if delivery.end < 0:\n            return delivery\n",
        "if delivery:\n            return delivery\n",
        "assembler/test_new_sources.py",
    ),
    PlantedBug(
        "order",
        "the END of a repeat that went with its release is not settled",
        "assembler/verified/rules.py",
        "np.flatnonzero(repeated & v.has_status(self.table, v.END))",
        "np.flatnonzero(repeated & v.has_status(self.table, v.BEGIN))",
        "assembler/test_new_sources.py",
    ),
    PlantedBug(
        "order",
        "a repeat without rows settles what is in front of it",
        "assembler/verified/rules.py",
        "(integer_column(self.table, v.EVENT_COUNT) > 0)",
        "(integer_column(self.table, v.EVENT_COUNT) >= 0)",
        "assembler/test_new_sources.py",
    ),
)
