"""How the lanes of a session read: whether they are the source's own tasks, or Spark sorts the rows first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from starrocks_txn_sink.errors import OptionError, Unordered
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.options.without_effect import Circumstance
from starrocks_txn_sink.sink.spark_jobs import TaskSlots, context_of, driver_addresses
from starrocks_txn_sink.sources.kafka.options import SPARK_READS
from starrocks_txn_sink.sources.kafka.spark_reader import has_whole_partitions
from starrocks_txn_sink.telemetry import get_logger
from starrocks_txn_sink.writer.task import LaneTask
from starrocks_txn_sink.writer.turns import TurnsAddress, turns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WAVES: Final = 2
"""Tasks of a micro-batch for each task that the cluster runs at a time: Spark then evens out lanes that take different
times. A further task costs 25 to 30 ms of processor time, and writes nothing sooner."""
_log = get_logger("sink")
_log_events = get_logger("assembler")


class Reading(Enum):
    """How the lanes get the rows of a micro-batch."""

    OWN_TASKS = "own tasks"  # of the source, in arrival order
    ONE_TASK = "one task"  # in arrival order; a few rows in any order
    SORTED = "sorted"  # a shuffle brings the rows of a source partition together, in order
    DIRECT = "direct"  # lanes read Kafka themselves


@dataclass(slots=True)
class LanePlan:
    """How the lanes of a session read its micro-batches: `reading` says it for the next one.

    There are at most `lanes` lanes; `slots` says how many tasks the cluster runs at a time, None if that is hidden or
    no limit. `turns` says where lanes take turns at tables, and ask who begins the label; `asks` is False once one of
    them could not. With `claims` Spark may run the task of a lane twice without its knowledge (`writer.lane_try`).
    `disordered`: rows have come out of order, or probably will.
    `small`: the last micro-batch was so small that one task takes it in any order. `proves`: one lane takes events in
    any order, because it proves source transactions by their counts; it gives out all rows in order. `in_order`: unless
    Spark sorts them, the messages of a partition of Kafka reach their lane in the order in which they came.
    """

    lanes: int
    claims: bool = False
    shuffle: bool | str = "auto"
    direct: bool = False
    proves: bool = False
    disordered: bool = False
    small: bool = False
    follows_a_shuffle: bool = False
    in_order: bool = True
    slots: Callable[[], int | None] = lambda: None
    turns: Callable[[], TurnsAddress | None] = lambda: None
    asks: bool = True

    @classmethod
    def of(
        cls,
        frame: DataFrame,
        options: SinkOptions,
        *,
        positioned: bool,
        streaming: bool = True,
        direct: bool = False,
        proves: bool = False,
    ) -> LanePlan:
        """The plan for frames like `frame`; `positioned` rows belong to source partitions.

        Unless the user sets `lanes`, there is a lane for each core. If it is unknown that each source partition is in
        one task, Spark sorts rows first. Partitions of Kafka are, and those of a streaming query's last stage mostly.

        Raises OptionError if lanes are to read Kafka, and Spark Connect hides the query's plan.
        """
        context = context_of(frame.sparkSession)
        if direct and context is None:
            raise OptionError(
                'With reader="librdkafka" the lanes read the offsets of the query\'s plan, which Spark Connect hides.',
                hint=SPARK_READS,
                option="reader",
            )
        shuffled = follows_a_shuffle(frame)
        speculates = context is not None and context.getConf().get("spark.speculation", "false").lower() == "true"
        of_kafka = direct or has_whole_partitions(frame)
        whole = not positioned or of_kafka or (streaming and shuffled)
        single = context is None or not (whole or options.shuffle is not False)  # nothing may bring rows together
        lanes = options.lanes or (1 if single else int(context.defaultParallelism))
        return cls(
            1 if proves else lanes,
            claims=shuffled or speculates,
            shuffle=not proves and options.shuffle,
            direct=direct,
            proves=proves,
            disordered=not whole and options.lanes is None,
            follows_a_shuffle=shuffled,
            in_order=direct or (of_kafka and not shuffled),
            slots=TaskSlots(context),
            turns=partial(turns_of, *driver_addresses(frame.sparkSession)),
        )

    @property
    def reading(self) -> Reading:
        """How the next micro-batch is read: as the options say, else by the order of the rows so far."""
        if self.direct:
            return Reading.DIRECT
        if self.shuffle is True:
            return Reading.SORTED
        if self.shuffle is False or not self.disordered:
            return Reading.OWN_TASKS
        return Reading.ONE_TASK if self.small and not self.follows_a_shuffle else Reading.SORTED

    @property
    def tasks(self) -> int:
        """The most tasks that the next micro-batch has."""
        if self.lanes == 1 or self.reading is Reading.ONE_TASK:
            return 1
        return min(self.lanes, WAVES * (self.slots() or self.lanes))

    @property
    def circumstances(self) -> tuple[Circumstance, ...]:
        """The circumstances of the next micro-batch in which options may have no effect."""
        if self.proves:
            return (Circumstance.PROVED,)
        circumstances = {Reading.OWN_TASKS: Circumstance.ARRIVAL_ORDER, Reading.DIRECT: Circumstance.KAFKA_READER}
        return (circumstances[self.reading],) if self.reading in circumstances else ()

    def task_of(self, task: LaneTask) -> LaneTask:
        """`task` for lanes that read so."""
        sort = self.reading is Reading.SORTED
        whole = self.direct or self.proves
        turns = self.turns() if self.asks or self.tasks > 1 else None
        return replace(
            task,
            lanes=self.tasks,
            claims=self.claims or sort,
            ordered=sort or self.proves,
            whole=whole,
            # A lane that is alone asks, too: its task may go on after its round has failed, and would then begin a
            # label that nobody ends. Where no lane can ask, the driver has to begin, however late the rows come.
            lane_begins=self.asks and turns is not None,
            turns=turns,
        )

    def learn(self, *, unreached: bool, small: bool = False) -> None:
        """The last micro-batch was `small`. If a lane could not ask the driver, it begins the labels from now on."""
        self.asks, self.small = self.asks and not unreached, small

    def sort(self, why: str, subject: str) -> None:
        """From now on `subject` are sorted, because of `why`; raises Unordered if the options forbid it."""
        if self.shuffle is False:
            raise Unordered(why, hint=f'Set shuffle to "auto" or true, so that {subject} are sorted first.')
        if not self.disordered:
            if subject == "rows":
                _log.warning("rows.sorted", why=why)
            else:
                _log_events.warning("events.sorted", why=why)
        self.disordered, self.small = True, False


def follows_a_shuffle(frame: DataFrame) -> bool:
    """Whether the frame's tasks read a shuffle, as those of a stateful stage do; True where the plan is hidden."""
    plan = getattr(frame, "_jdf", None)
    return plan is None or "Shuffled" in plan.queryExecution().toRdd().toDebugString()
