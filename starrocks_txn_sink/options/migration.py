"""The table of the migration guide: what becomes of each option of the Flink connector, from the code's own table."""

from __future__ import annotations

from starrocks_txn_sink.options.flink import FLINK_OPTIONS, FLINK_PREFIXES, Becomes, Refused, WithoutEffect


def render_flink_options() -> str:
    """Markdown: a line for each option, in the order of the code."""
    lines = ["| Flink connector | here |", "|---|---|"]
    lines += [f"| `{name}` | {_told(rule)} |" for name, rule in FLINK_OPTIONS.items()]
    lines.append("| `sink.properties.<name>` | `properties[<name>]` |")
    lines.append("| `table.<table>.properties.<name>` | `tables[<table>][<name>]` |")
    lines += [f"| `{prefix}…` | {_told(rule)} |" for prefix, rule in FLINK_PREFIXES.items()]
    return "\n".join(lines) + "\n"


def _told(rule: Becomes | Refused | WithoutEffect) -> str:
    match rule:
        case Becomes(option, _, note):
            return f"`{option}`" + (f" ({note})" if note else "")
        case WithoutEffect(reason):
            return f"accepted, changes nothing: {reason}"
        case Refused(reason, values):
            allowed = f"; accepted as {' or '.join(f'`{value}`' for value in values)}" if values else ""
            return f"refused: {reason}{allowed}"
