"""Executors, workers and drivers of a standalone cluster end at a known step; every row is written once.

`BATCH` commits a micro-batch from the driver under a label that both lanes load into; `LANE` sorts, over a shuffle
between the executors, and each lane commits for itself.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.orders import BATCHES, INSTALLED, ROOT, SECOND_BATCH, Orders, Shipment
from tests.support.spark_conf import ROCKSDB
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

BATCH: dict[str, Any] = {"lanes": 2, "transactions": "batch"}
LANE: dict[str, Any] = {"lanes": 2, "transactions": "lane"}
both = pytest.mark.parametrize("options", [BATCH, LANE], ids=["batch", "lane"])
HOLD = 10.0  # seconds that a request waits: ten times as long as it takes to notice it and to kill
HANGING_LOADS = {"operation": "load", "table": "orders", "label": SECOND_BATCH, "action": "hang", "seconds": HOLD}
LATE_COMMIT = {"operation": "commit", "label": SECOND_BATCH, "action": "hang", "seconds": HOLD, "times": 1}
UNSEEN_COMMIT = {"operation": "commit", "label": SECOND_BATCH, "action": "hold_commit", "times": 1}


def lanes_of(result: dict[str, Any]) -> set[str]:
    """The lanes that the receipts' labels name, or `all`; there is a receipt for every micro-batch."""
    receipts = result["receipts"]
    assert {one["batch"] for one in receipts} == set(range(BATCHES))
    return {one["label"].rsplit("-", 3)[1] for one in receipts}


def kill_executor(orders: Orders) -> psutil.Process:
    """SIGKILL for one executor's JVM alone: its Python workers have to notice by themselves."""
    executors = orders.cluster.executors()
    assert len(executors) == 2
    executors[0].kill()
    return executors[0]


def has_begun_again(orders: Orders, options: dict[str, Any]) -> bool:
    """Whether the second micro-batch took more labels than without any trouble."""
    return len(orders.begun()) > (1 if options is BATCH else options["lanes"])


# --- plain runs ---


@pytest.mark.parametrize(
    ("options", "lanes"), [({"lanes": 1}, {"0"}), (BATCH, {"all"}), (LANE, {"0", "1"})], ids=["one", "batch", "lane"]
)
def test_a_plain_run(orders: Orders, options: dict[str, Any], lanes: set[str]) -> None:
    result = orders.submit(**options).finish()
    assert lanes_of(result) == lanes
    orders.judge()
    files = {one["file"] for one in result["imported"] if one["file"]}
    assert files == {str(ROOT / "starrocks_txn_sink" / "__init__.py")}


@both
def test_the_package_comes_as_an_archive(orders: Orders, options: dict[str, Any]) -> None:
    orders.shipment = Shipment.pack(orders.folder)
    result = orders.submit({}, **options).finish()
    orders.judge()
    folders = {one["folder"]: one["file"] for one in result["imported"]}
    assert len(folders) == 2, "each executor has a folder of its own"
    assert all(Path(folder).is_relative_to(orders.cluster.folder) for folder in folders)
    for folder, file in folders.items():
        assert Path(folder, file) == Path(folder, "sink.zip/starrocks_txn_sink/__init__.py")


DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
    "spark.scheduler.minRegisteredResourcesRatio": "0",
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
}


@pytest.mark.parametrize(
    ("conf", "options"),
    [({"spark.python.worker.reuse": "false"}, BATCH), (DYNAMIC, BATCH), (DYNAMIC, LANE)],
    ids=["new_worker", "dynamic_batch", "dynamic_lane"],
)
def test_a_setting_of_spark(orders: Orders, conf: dict[str, str], options: dict[str, Any]) -> None:
    lanes_of(orders.submit({**INSTALLED, **conf}, **options).finish())
    orders.judge()


def test_a_speculative_copy_of_a_lane(orders: Orders) -> None:
    """A lane's load hangs, so that Spark starts a copy of it in the other executor."""
    orders.fault({**HANGING_LOADS, "times": 1})
    result = orders.submit({**INSTALLED, **SPECULATION}, lanes=2).finish()
    assert lanes_of(result) == {"0", "1"}, "with speculation each lane has labels of its own"
    attempts = Counter(label.rsplit("-", 3)[1] for label in orders.begun())
    assert sorted(attempts.values()) == [1, 2]
    orders.judge()


# --- ends of processes ---


@both
def test_an_executor_is_killed_while_it_loads(orders: Orders, options: dict[str, Any]) -> None:
    orders.fault({**HANGING_LOADS, "times": 2})
    driver = orders.submit(**options)
    orders.wait_for_fault(2)
    kill_executor(orders)
    lanes_of(driver.finish())
    assert has_begun_again(orders, options)
    orders.judge()


@pytest.mark.parametrize(
    ("options", "fault"),
    [(LANE, UNSEEN_COMMIT), (LANE, LATE_COMMIT), (BATCH, UNSEEN_COMMIT)],
    ids=["lane_unseen", "lane_late", "batch_unseen"],
)
def test_an_executor_is_killed_while_a_commit_is_held(
    orders: Orders, options: dict[str, Any], fault: dict[str, Any]
) -> None:
    """`unseen`: committed, not visible until the kill; `late`: carried out long after its sender's end."""
    commits = 2 if options is LANE else 1
    orders.fault({**fault, "times": commits})
    driver = orders.submit(**options)
    orders.wait_for_fault(commits)
    dead = kill_executor(orders)
    if fault is UNSEEN_COMMIT:
        wait_until(lambda: len([one for one in orders.cluster.executors() if one != dead]) == 2)
        orders.server.faults({})
    lanes_of(driver.finish())
    orders.judge()


@both
def test_a_worker_is_killed_and_the_other_one_goes_on(orders: Orders, options: dict[str, Any]) -> None:
    orders.fault({**HANGING_LOADS, "times": 2})
    driver = orders.submit(**options)
    orders.wait_for_fault(2)
    orders.cluster.workers[0].kill()
    lanes_of(driver.finish())
    assert has_begun_again(orders, options)
    orders.judge()


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        (BATCH, [{**HANGING_LOADS, "times": 2}]),
        (BATCH, [LATE_COMMIT]),
        (LANE, [{**HANGING_LOADS, "times": 2}]),
        (LANE, [{**LATE_COMMIT, "times": 2}]),
    ],
    ids=["batch_load", "batch_commit", "lane_load", "lane_commit"],
)
def test_the_driver_is_killed_and_starts_elsewhere(
    orders: Orders, options: dict[str, Any], faults: list[dict[str, Any]]
) -> None:
    """The second driver has another working folder, and the first one's requests arrive while it runs."""
    orders.fault(*faults)
    first = orders.submit(**options)
    orders.wait_for_fault(faults[0]["times"])
    executors = orders.cluster.executors()
    first.kill()
    second = orders.submit(**options).finish()
    assert {one["batch"] for one in second["receipts"]} == set(range(1, BATCHES))
    assert not psutil.wait_procs(executors, 20)[1], "an executor outlives its driver"
    orders.judge()


# --- refusals ---


def test_state_in_rocksdb_refuses_a_package_from_an_archive(orders: Orders) -> None:
    orders.shipment = Shipment.pack(orders.folder)
    rocksdb = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB}
    said = orders.submit(rocksdb, task={"stage": True}).fail()
    assert "The package comes from sink.zip (--py-files), and Spark hides that from the process on the driver" in said
    assert not list((orders.folder / "checkpoint").glob("offsets/*"))


@pytest.mark.parametrize("where", ["checkpoint", "state_dir"])
def test_state_that_executors_do_not_see_is_refused_in_the_first_micro_batch(orders: Orders, where: str) -> None:
    """The path is absolute, and each process has another folder there: the one that it runs in."""
    said = orders.submit(task={where: "/proc/self/cwd/state"}, **LANE).fail()
    assert "does not see the state directory" in said
    assert "Driver and executors must share the checkpoint" in said
    assert orders.open_labels() == []
