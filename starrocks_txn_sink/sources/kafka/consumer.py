"""Consumers of assigned Kafka partitions, which return rows as columns; both use librdkafka.

`NativeConsumer` calls librdkafka's C interface, and the compiled loop copies the messages without a Python object for
each. `ObjectConsumer` uses the Python client: it works without the compiled loop and costs several times as much.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import itemgetter, methodcaller
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer as Client, KafkaError, KafkaException, TopicPartition, cimpl

from starrocks_txn_sink.compiled.layout import Message
from starrocks_txn_sink.compiled.library import Functions, declare, is_available
from starrocks_txn_sink.compiled.messages import HEADER, Messages, UnreadableHeaders
from starrocks_txn_sink.errors import SourceDamaged
from starrocks_txn_sink.sources.kafka.offsets import KafkaPartition

HEADERS: Final = pa.list_(HEADER)
Integers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

# methodcaller keeps the loop over messages in C code: there are hundreds of thousands of messages a second.
_ERROR, _TOPIC, _PARTITION, _OFFSET = map(methodcaller, ("error", "topic", "partition", "offset"))
_TIME, _KEY, _VALUE = map(methodcaller, ("timestamp", "key", "value"))
_CONSUMER: Final = 1  # of rd_kafka_type_t
_TEXT_BYTES: Final = 512  # for the text of an error


class Rows(NamedTuple):
    """Messages as columns."""

    topics: Integers  # indexes into the sorted names of the assigned topics
    partitions: Integers
    offsets: Integers
    times: Integers  # milliseconds since the Unix epoch
    values: pa.Array
    keys: pa.Array | None  # None unless the poll asked for keys
    headers: pa.Array | None = None  # HEADERS, NULL for a row without any; None unless the poll asked for headers

    def take(self, places: Integers) -> Rows:
        """The rows at these places."""
        indexes = pa.array(places)
        keys, headers = (None if column is None else column.take(indexes) for column in (self.keys, self.headers))
        topics, partitions, offsets, times = (column[places] for column in self[:4])
        return Rows(topics, partitions, offsets, times, self.values.take(indexes), keys, headers)


class Problem(NamedTuple):
    """An error that librdkafka reports among the messages, or the end of a log.

    `partition` is None for a broker's. `rows_before` is the number of the poll's rows that came earlier.
    """

    partition: KafkaPartition | None
    offset: int
    error: KafkaError
    rows_before: int


class Consumer(Protocol):
    """Reads the assigned partitions. The methods raise KafkaException, `poll` also SourceDamaged."""

    def assign(self, starts: Mapping[KafkaPartition, int]) -> None:
        """Read these partitions only, each from its offset on."""

    def leave(self, partitions: Iterable[KafkaPartition]) -> None:
        """Stop reading these partitions, and drop their fetched messages."""

    def poll(self, limit: int, seconds: float, keys: bool, headers: bool) -> tuple[Rows, list[Problem]]:
        """Wait up to `seconds` for up to `limit` messages."""

    def close(self) -> None:
        """Leave the brokers, and end the client's threads. Called once, and last."""


def open_consumer(config: Mapping[str, Any]) -> Consumer:
    """A consumer with librdkafka's settings: a NativeConsumer if this process has the compiled loop."""
    if is_available() and _librdkafka() is not None:
        return NativeConsumer(config)
    return ObjectConsumer(Client(dict(config)))


def topic_names(partitions: Iterable[KafkaPartition]) -> list[str]:
    """The topics of partitions, each once, sorted: the list that `Rows.topics` are places in."""
    return sorted({topic for topic, _ in partitions})


# --- the Python client ---


class ObjectConsumer:
    """A consumer that makes a Python object for each message."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._codes: dict[str, int] = {}

    def assign(self, starts: Mapping[KafkaPartition, int]) -> None:
        """Read these partitions only, each from its offset on; raises KafkaException."""
        self._codes = {topic: code for code, topic in enumerate(topic_names(starts))}
        self._client.assign([TopicPartition(*partition, start) for partition, start in starts.items()])

    def leave(self, partitions: Iterable[KafkaPartition]) -> None:
        """Stop reading these partitions; raises KafkaException for one that is not assigned."""
        self._client.incremental_unassign([TopicPartition(*place) for place in partitions])

    def poll(self, limit: int, seconds: float, keys: bool, headers: bool) -> tuple[Rows, list[Problem]]:
        """Wait up to `seconds` for up to `limit` messages; errors among them are Problems, and no rows."""
        messages = self._client.consume(limit, timeout=seconds)
        problems: list[Problem] = []
        if any(map(_ERROR, messages)):
            places = [place for place, message in enumerate(messages) if message.error() is not None]
            problems = [_problem(messages[place], place - number) for number, place in enumerate(places)]
            messages = [message for message in messages if message.error() is None]
        count = len(messages)
        topics = (
            np.fromiter(map(self._codes.__getitem__, map(_TOPIC, messages)), np.int64, count)
            if len(self._codes) > 1
            else np.zeros(count, dtype=np.int64)
        )
        rows = Rows(
            topics,
            np.fromiter(map(_PARTITION, messages), np.int64, count),
            np.fromiter(map(_OFFSET, messages), np.int64, count),
            np.fromiter(map(itemgetter(1), map(_TIME, messages)), np.int64, count),
            pa.array(list(map(_VALUE, messages)), pa.binary()),
            pa.array(list(map(_KEY, messages)), pa.binary()) if keys else None,
            pa.array([_headers(message) for message in messages], HEADERS) if headers else None,
        )
        return rows, problems

    def close(self) -> None:
        """Leave the brokers, and end the client's threads; waits for both."""
        self._client.close()


def _headers(message: Any) -> list[dict[str, Any]] | None:
    return [{"key": name, "value": value} for name, value in message.headers() or ()] or None


def _problem(message: Any, rows_before: int) -> Problem:
    topic = message.topic()
    partition = None if topic is None else (topic, message.partition())
    return Problem(partition, message.offset(), message.error(), rows_before)


# --- librdkafka's C interface ---


class _Partition(ctypes.Structure):
    """The head of `rd_kafka_topic_partition_t`."""

    _fields_ = (("topic", ctypes.c_char_p), ("partition", ctypes.c_int32), ("offset", ctypes.c_int64))


_POINTER, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_FUNCTIONS: Final[Functions] = {
    "conf_new": (_POINTER, ()),
    "conf_set": (_INT, (_POINTER, _TEXT, _TEXT, _TEXT, ctypes.c_size_t)),
    "conf_destroy": (None, (_POINTER,)),
    "new": (_POINTER, (_INT, _POINTER, _TEXT, ctypes.c_size_t)),
    "poll_set_consumer": (_INT, (_POINTER,)),
    "queue_get_consumer": (_POINTER, (_POINTER,)),
    "queue_destroy": (None, (_POINTER,)),
    "consumer_close": (_INT, (_POINTER,)),
    "destroy": (None, (_POINTER,)),
    "topic_partition_list_new": (_POINTER, (_INT,)),
    "topic_partition_list_add": (ctypes.POINTER(_Partition), (_POINTER, _TEXT, ctypes.c_int32)),
    "topic_partition_list_destroy": (None, (_POINTER,)),
    "assign": (_INT, (_POINTER, _POINTER)),
    "incremental_unassign": (_POINTER, (_POINTER, _POINTER)),
    "error_code": (_INT, (_POINTER,)),
    "error_destroy": (None, (_POINTER,)),
    "consume_batch_queue": (ctypes.c_ssize_t, (_POINTER, _INT, _POINTER, ctypes.c_size_t)),
    "topic_name": (_TEXT, (_POINTER,)),
    "message_timestamp": (ctypes.c_int64, (_POINTER, _POINTER)),
    "message_headers": (_INT, (_POINTER, _POINTER)),
    "header_get_all": (_INT, (_POINTER, ctypes.c_size_t, *[_POINTER] * 3)),
    "message_destroy": (None, (_POINTER,)),
}


@cache
def _librdkafka() -> Any:
    """The functions of the library that the Python client brings; None where it hides them."""
    library = ctypes.CDLL(cimpl.__file__)
    try:
        declare(library, "rd_kafka_", _FUNCTIONS)
    except AttributeError:
        return None
    return library


class NativeConsumer:
    """A consumer that copies librdkafka's messages into columns."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._lib = _librdkafka()
        self._handle = self._open(config)
        self._lib.rd_kafka_poll_set_consumer(self._handle)
        self._queue = self._lib.rd_kafka_queue_get_consumer(self._handle)
        self._names: list[str] = []
        self._codes: dict[int, int] = {}

    def _open(self, config: Mapping[str, Any]) -> int:
        reason = ctypes.create_string_buffer(_TEXT_BYTES)
        settings = self._lib.rd_kafka_conf_new()
        for name, value in config.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if self._lib.rd_kafka_conf_set(settings, name.encode(), text.encode(), reason, _TEXT_BYTES):
                self._lib.rd_kafka_conf_destroy(settings)
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, reason.value.decode()))
        handle: int | None = self._lib.rd_kafka_new(_CONSUMER, settings, reason, _TEXT_BYTES)
        if handle is None:
            self._lib.rd_kafka_conf_destroy(settings)
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, reason.value.decode()))
        return handle

    def assign(self, starts: Mapping[KafkaPartition, int]) -> None:
        """Read these partitions only, each from its offset on; raises KafkaException."""
        self._names, self._codes = topic_names(starts), {}
        _check(self._with_list(starts, lambda places: self._lib.rd_kafka_assign(self._handle, places)))

    def leave(self, partitions: Iterable[KafkaPartition]) -> None:
        """Stop reading these partitions; raises KafkaException for one that is not assigned."""
        fault = self._with_list(
            dict.fromkeys(partitions, 0), lambda places: self._lib.rd_kafka_incremental_unassign(self._handle, places)
        )
        if fault:
            code = self._lib.rd_kafka_error_code(fault)
            self._lib.rd_kafka_error_destroy(fault)
            _check(code)

    def poll(self, limit: int, seconds: float, keys: bool, headers: bool) -> tuple[Rows, list[Problem]]:
        """Wait up to `seconds` for up to `limit` messages; errors among them are Problems, and no rows.

        Raises SourceDamaged for headers that cannot be read.
        """
        pointers = np.empty(limit, dtype=np.uintp)
        milliseconds = round(1000 * seconds)
        count = self._lib.rd_kafka_consume_batch_queue(self._queue, milliseconds, pointers.ctypes.data, limit)
        messages = Messages(pointers[: max(count, 0)])
        try:
            columns = messages.columns(self._lib.rd_kafka_message_timestamp, keys)
            problems = list(map(self._problem, messages.errors(), messages.rows_before_errors()))
            rows = Rows(self._topics(columns[0]), *columns[1:])
            if headers:
                rows = rows._replace(headers=self._headers(messages))
        finally:
            messages.destroy(self._lib.rd_kafka_message_destroy)
        return rows, problems

    def close(self) -> None:
        """Leave the brokers, and free librdkafka's handles: a second call would free them again."""
        self._lib.rd_kafka_queue_destroy(self._queue)
        self._lib.rd_kafka_consumer_close(self._handle)
        self._lib.rd_kafka_destroy(self._handle)

    def _topics(self, addresses: Integers) -> Integers:
        """The indexes of the topics at these addresses."""
        if len(self._names) == 1:
            return np.zeros(len(addresses), dtype=np.int64)
        starts = np.flatnonzero(np.diff(addresses, prepend=-1))  # messages come in runs of a topic
        topics = addresses[starts].tolist()
        for address in set(topics).difference(self._codes):
            self._codes[address] = self._names.index(self._lib.rd_kafka_topic_name(address).decode())
        codes = np.array([self._codes[address] for address in topics], dtype=np.int64)
        return np.repeat(codes, np.diff(starts, append=len(addresses)))

    def _headers(self, messages: Messages) -> pa.Array:
        try:
            return messages.headers(self._lib.rd_kafka_message_headers, self._lib.rd_kafka_header_get_all)
        except UnreadableHeaders as unreadable:
            (message,) = unreadable.args
            topic = self._lib.rd_kafka_topic_name(message.topic).decode()
            place = {"topic": topic, "partition": message.partition, "offset": message.offset}
            raise SourceDamaged("The headers of a Kafka message cannot be read.", **place) from None

    def _problem(self, message: Message, rows_before: int) -> Problem:
        topic = self._lib.rd_kafka_topic_name(message.topic).decode() if message.topic else None
        text = ctypes.string_at(message.value, message.value_size).decode(errors="replace") if message.value else None
        error = KafkaError(message.error, text, message.error == KafkaError._FATAL)
        partition = None if topic is None else (topic, message.partition)
        return Problem(partition, message.offset, error, rows_before)

    def _with_list(self, starts: Mapping[KafkaPartition, int], call: Callable[[int], _Result]) -> _Result:
        places = self._lib.rd_kafka_topic_partition_list_new(len(starts))
        try:
            for (topic, number), start in starts.items():
                entry = self._lib.rd_kafka_topic_partition_list_add(places, topic.encode(), number)
                entry.contents.offset = start
            return call(places)
        finally:
            self._lib.rd_kafka_topic_partition_list_destroy(places)


_Result = TypeVar("_Result")


def _check(code: int) -> None:
    if code:
        raise KafkaException(KafkaError(code))
