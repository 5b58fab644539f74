"""Offsets of Kafka's partitions, and those in an offset of a Kafka source. Pure."""

import json
from collections.abc import Mapping
from typing import Any

KafkaPartition = tuple[str, int]  # topic, number of the partition
Offsets = Mapping[KafkaPartition, int]


def parse_offsets(offset: str | Mapping[str, Any]) -> dict[KafkaPartition, int]:
    """Offsets by partition in an offset of a Kafka source, as JSON or parsed.

    Raises ValueError, TypeError, AttributeError or OverflowError for any other form: if it left a partition out, the
    partition would be read from another offset.
    """
    topics = json.loads(offset) if isinstance(offset, str) else offset
    return {
        (topic, int(number)): int(place)
        for topic, numbers in topics.items()
        if not topic.startswith("@")
        for number, place in numbers.items()
    }


def offsets_of(offset: Any) -> dict[KafkaPartition, int]:
    """As `parse_offsets`; empty for a source of another kind than Kafka's."""
    try:
        return parse_offsets(offset)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return {}
