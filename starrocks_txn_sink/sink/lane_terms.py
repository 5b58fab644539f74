"""The terms that a frame of lanes carries to the data source: how it was laid out, and the options it was made with.

They travel as text in the metadata of one of the frame's columns, because that is all of a frame that Spark shows to a
data source. A password never travels with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

import orjson
from pyspark.sql import types as T  # noqa: N812 - everybody's name for it

from starrocks_txn_sink.errors import InputError, OptionError
from starrocks_txn_sink.lane.columns import PAYLOAD
from starrocks_txn_sink.logs import LogSettings
from starrocks_txn_sink.options import SinkOptions, TableOptions
from starrocks_txn_sink.options.combinations import Feature

KEY = "starrocks_txn_sink.lanes"
_SPARKS_OWN = ("checkpointlocation", "path", "batch_id")
_LAID_DOWN = ("database", "lanes", "delivery", "on_bad_rows", "properties", "tables", "timestamp_zone")
"""What the rows were made with: it cannot change afterwards."""


@dataclass(frozen=True, slots=True)
class LaneTerms:
    """`marked` as in `LaneTask`; `epoch` tells frames apart, and so the runs of a query; `secret` says that the options
    had a password, which is not among them; `logging` is how the process that made the frame logs."""

    options: Mapping[str, Any]
    marked: bool
    epoch: str
    secret: bool = False
    logging: LogSettings | None = None

    @classmethod
    def of(cls, options: SinkOptions, *, marked: bool, epoch: str, logging: LogSettings | None) -> LaneTerms:
        return cls(_plain(options), marked, epoch, bool(options.password), logging)

    @property
    def metadata(self) -> dict[str, str]:
        """For a column of the frame."""
        return {KEY: orjson.dumps(asdict(self)).decode()}

    @classmethod
    def within(cls, schema: T.StructType) -> LaneTerms:
        """The terms of a frame with `schema`; raises InputError when lane_partitioned did not make it."""
        texts = [field.metadata.get(KEY) for field in schema.fields if field.name == PAYLOAD]
        if not texts or texts[0] is None:
            raise InputError(
                "The frame was not made by lane_partitioned: a data source cannot bring the rows of a source partition "
                "together in one task, nor in order, so it refuses rows that nobody has laid out.",
                hint='Write lane_partitioned(frame, options).write.format("starrocks_txn"), or use StarRocksSink.',
            )
        found = orjson.loads(texts[0])
        logging = found.pop("logging")
        return cls(**found, logging=None if logging is None else LogSettings(**logging))

    def sink_options(self, given: Mapping[str, str]) -> SinkOptions:
        """The frame's options with those that the data source was `given` as text laid over them.

        Raises OptionError for an option that is unknown, that would change how the rows were made or that means
        nothing to a data source, and for a password that is missing.
        """
        own = {name: text for name, text in given.items() if name.lower() not in _SPARKS_OWN}
        values = SinkOptions.values_of(own)
        if self.secret and not values.keys() & {"password", "password_file", "password_environment"}:
            raise OptionError(
                "The password that lane_partitioned was given does not travel with the frame.",
                hint='Give it to the writer too, as .option("password", …), or use password_environment or '
                "password_file.",
                option="password",
            )
        options = SinkOptions(**{**self.options, **values})
        laid_down = SinkOptions(**self.options)
        for name in _LAID_DOWN:
            if getattr(options, name) != getattr(laid_down, name):
                raise OptionError(
                    f"{name} cannot be changed after lane_partitioned: the rows were made with it.",
                    hint=f"Give {name} to lane_partitioned.",
                    option=name,
                )
        options.check_with(Feature.DATA_SOURCE)
        return options


def _plain(options: SinkOptions) -> dict[str, Any]:
    """Every option that is set and no secret, as what JSON knows."""
    values = {one.name: getattr(options, one.name) for one in fields(options) if one.repr}
    return {name: _json(value) for name, value in values.items() if value is not None}


def _json(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, TableOptions):
        return dict(value.properties)
    if isinstance(value, Mapping):
        return {name: _json(one) for name, one in value.items()}
    return list(value) if isinstance(value, tuple) else value
