"""`LineageListener`: run events of OpenLineage from the receipts of a sink."""

from __future__ import annotations

import atexit
import queue
import re
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.coordinator.model import PositionSpan, Receipt
from starrocks_txn_sink.errors import OptionError, StarRocksSinkError
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.public_names import suggests_arguments
from starrocks_txn_sink.sink.typed.tables import table_columns
from starrocks_txn_sink.sql.connection import LeaderConnection
from starrocks_txn_sink.telemetry import Event, get_logger

_WAITING: Final = 100  # events that wait for a collector; a run of ten minutes sends ten
_LABELS: Final = 20  # of an event
_SECONDS: Final = 10.0  # for the columns of the tables, and for events that wait when the process ends
_TOPIC: Final = re.compile(r"(?P<topic>.+)-\d+")
_Place = dict[str, Any]
_log = get_logger("lineage")
_listeners: weakref.WeakSet[LineageListener] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close the listeners when the process ends: it does not wait for their threads, and no event tells of the end."""
    deadline = Deadline.after(_SECONDS, SystemClock())
    for listener in tuple(_listeners):
        listener.close(deadline.remaining())


@dataclass(slots=True)
class _Run:
    """A run of a query or a call of `write`, and what it has written since the last event."""

    id: str
    job: str
    streaming: bool
    sent_at: float
    spans: dict[str, PositionSpan] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    labels: deque[str] = field(default_factory=lambda: deque(maxlen=_LABELS))
    transactions: int = 0
    batches: tuple[int, int] | None = None

    def add(self, receipt: Receipt) -> None:
        for region in receipt.regions:
            self.rows[region.table] += region.rows
            self.bytes[region.table] += region.bytes
        for span in receipt.positions:
            earlier = self.spans.get(span.partition, span)
            count = span.source_transactions + (earlier.source_transactions if earlier is not span else 0)
            self.spans[span.partition] = PositionSpan(span.partition, earlier.first, span.last, count)
        self.labels.append(receipt.label)
        self.transactions += 1
        self.batches = (self.batches[0] if self.batches else receipt.batch_id, receipt.batch_id)

    def clear(self) -> None:
        self.spans, self.rows, self.bytes = {}, Counter(), Counter()
        self.labels.clear()
        self.transactions, self.batches = 0, None


@suggests_arguments
class LineageListener:
    """Send OpenLineage run events about what a sink writes; give it as the sink's `listener`.

    The first micro-batch of a query sends START; then, at most every `interval`, RUNNING has what was written since the
    last event: positions by topic, rows, bytes and columns by table, labels. A failed micro-batch sends FAIL, and
    a stop of the query in a micro-batch, `close` or the end of the process COMPLETE. A call of `write` is a run of its
    own. A thread sends, so no commit waits. An event that the collector does not take is logged and lost.

    Args:
        options: The options of the sink.
        topics: The names of the inputs. By default the topics in the names of source partitions (`orders-0`). With one
            name it stands for all source partitions.
        source: The namespace of the inputs, as in `kafka://broker:9092`.
        namespace: The namespace of the job.
        interval: Seconds.
        client: OpenLineage's client; by default its own configuration decides (`openlineage.yml`, `OPENLINEAGE_URL`).

    Raises:
        OptionError: The package openlineage-python is missing.

    Example::

        from starrocks_txn_sink import LineageListener, SinkOptions, StarRocksSink

        options = SinkOptions(load_url="http://fe:8030", query_url="mysql://fe:9030", database="shop")
        lineage = LineageListener(options, topics=["orders"], source="kafka://broker:9092")
        sink = StarRocksSink(options, listener=lineage)
    """

    def __init__(
        self,
        options: SinkOptions,
        *,
        topics: Sequence[str] = (),
        source: str = "kafka",
        namespace: str = "starrocks_txn_sink",
        interval: float = 60.0,
        client: Any = None,
    ) -> None:
        try:
            from starrocks_txn_sink.sink import lineage_events
        except ImportError:
            raise OptionError(
                "LineageListener needs the package openlineage-python.",
                hint="pip install 'starrocks-txn-sink[lineage]' on the driver.",
            ) from None
        self._ol = lineage_events
        self._options, self._source, self._namespace = options, source, namespace
        self._topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self._interval, self._clock = interval, SystemClock()
        self._given = {
            "topics": topics,
            "source": source,
            "namespace": namespace,
            "interval": interval,
            "client": client,
        }
        self._client = client if client is not None else lineage_events.client()
        self._runs: dict[str, _Run] = {}  # by job
        self._guard = threading.Lock()
        self._waiting: queue.Queue[Callable[[], object]] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        _listeners.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Spark Connect pickles the sink with its listener."""
        return _made_again, (self._options, self._given)

    def __call__(self, event: Event) -> None:
        """Take one event of the sink."""
        fields = event.fields
        with self._guard:
            match event.name:
                case "batch.started":
                    self._started(fields["job"], streaming=bool(fields["query"]))
                case "receipt.collected":
                    if (run := self._runs.get(fields["receipt"].job)) is not None:
                        run.add(fields["receipt"])
                case "batch.completed":
                    self._completed(fields["job"])
                case "batch.failed":
                    self._end(fields["job"], "FAIL", str(fields["code"]))
                case "batch.stopped":
                    self._end(fields["job"], "COMPLETE")
                case _:
                    pass

    def close(self, seconds: float = 10.0) -> None:
        """Send COMPLETE for all runs, and wait until all events are sent.

        Args:
            seconds: The longest wait.
        """
        with self._guard:
            for job in tuple(self._runs):
                self._end(job, "COMPLETE")
            thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _started(self, job: str, *, streaming: bool) -> None:
        if job not in self._runs:
            self._runs[job] = _Run(self._ol.new_run(), job, streaming, self._clock.monotonic())
            self._send("START", self._runs[job])

    def _completed(self, job: str) -> None:
        run = self._runs.get(job)
        if run is None:
            return
        if not run.streaming:
            self._end(job, "COMPLETE")
        elif self._clock.monotonic() - run.sent_at >= self._interval:
            self._send("RUNNING", run)

    def _end(self, job: str, state: str, error: str = "") -> None:
        run = self._runs.pop(job, None)
        if run is not None:
            self._send(state, run, error)

    def _send(self, state: str, run: _Run, error: str = "") -> None:
        """Give an event to the thread, which is started for it."""
        tables = sorted(run.rows)
        place = self._ol.Place(self._namespace, run.job, self._source, self._target(), run.streaming)
        now, (inputs, unnamed_inputs) = self._clock.wall(), self._inputs(run.spans.values())
        outputs = {f"{self._options.database}.{table}": (run.rows[table], run.bytes[table]) for table in tables}
        counts = run.transactions, tuple(run.labels), run.batches
        run.sent_at, number = self._clock.monotonic(), run.id
        run.clear()

        def emit() -> None:
            event_of_run = self._ol.Written(inputs, unnamed_inputs, outputs, self._columns(tables), *counts)
            self._client.emit(self._ol.run_event(state, number, place, event_of_run, now, error))

        try:
            self._waiting.put_nowait(emit)
        except queue.Full:
            _log.warning("lineage.lost", job=run.job, state=state, why="too many events wait for the collector")
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="starrocks-lineage", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        """Send what waits, and end."""
        while True:
            with self._guard:
                if self._waiting.empty():
                    self._thread = None
                    return
            try:
                self._waiting.get_nowait()()
            except Exception as error:  # of the collector or of its client
                _log.warning("lineage.lost", why=_reason(error))

    def _inputs(self, spans: Iterable[PositionSpan]) -> tuple[dict[str, list[_Place]], list[_Place]]:
        """Positions by the name of the input, and those of which no input is known."""
        inputs: dict[str, list[_Place]] = {name: [] for name in self._topics}
        unnamed_places = list[_Place]()
        for span in spans:
            match = _TOPIC.fullmatch(span.partition)
            name = self._topics[0] if len(self._topics) == 1 else match["topic"] if match else None
            place = {"partition": span.partition, "first": span.first, "last": span.last}
            places = unnamed_places if name is None else inputs.setdefault(name, [])
            places.append({**place, "sourceTransactions": span.source_transactions})
        return inputs, unnamed_places

    def _target(self) -> str:
        address = next(iter(self._options.query_addresses), None)
        return f"starrocks://{address.netloc}" if address is not None else "starrocks"

    def _columns(self, tables: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
        """The columns of the tables; empty without a query port, and where it refuses."""
        if self._options.query_url is None or not tables:
            return {}
        connection = LeaderConnection(self._options)
        try:
            columns_by_table = table_columns(
                connection, self._options.database, tables, Deadline.after(_SECONDS, self._clock)
            )
        except StarRocksSinkError:
            return {}
        finally:
            connection.close()
        names = {
            table: [(column.name, str(column.type)) for column in columns]
            for table, columns in columns_by_table.items()
        }
        return {f"{self._options.database}.{table}": columns for table, columns in names.items()}


def _reason(error: Exception) -> str:
    """What failed, without the error's text: it may have the collector's address, with a password in it."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return type(error).__name__ if status is None else f"{type(error).__name__}, HTTP {status}"


def _made_again(options: SinkOptions, arguments: dict[str, Any]) -> LineageListener:
    return LineageListener(options, **arguments)
