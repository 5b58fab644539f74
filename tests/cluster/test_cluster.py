"""Executors, workers and drivers of a standalone cluster end at a known step; every row is written once.

The driver commits a micro-batch under a label that both lanes load into. `TASKS` loads in the tasks of the source,
`SHUFFLE` after a shuffle between the executors.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from starrocks_txn_sink.coordinator.coordinator import LANE
from tests.cluster.orders import BATCHES, INSTALLED, SECOND_BATCH, Orders, Shipment
from tests.support.product_files import ROOT
from tests.support.spark_conf import ROCKSDB
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

TASKS: dict[str, Any] = {"lanes": 2}
SHUFFLE: dict[str, Any] = {"lanes": 2, "shuffle": True}
both_layouts = pytest.mark.parametrize("options", [TASKS, SHUFFLE], ids=["tasks", "shuffle"])
HOLD = 10.0  # seconds that a request waits: ten times as long as it takes to notice it and to kill
HANGING_LOADS = {"operation": "load", "table": "orders", "label": SECOND_BATCH, "action": "hang", "seconds": HOLD}
LATE_COMMIT = {"operation": "commit", "label": SECOND_BATCH, "action": "hang", "seconds": HOLD, "times": 1}
UNSEEN_COMMIT = {"operation": "commit", "label": SECOND_BATCH, "action": "hold_commit", "times": 1}


def lanes_of(result: dict[str, Any]) -> set[str]:
    """The lanes that the receipts' labels name, or `all`; there is a receipt for every micro-batch."""
    receipts = result["receipts"]
    assert {receipt["batch"] for receipt in receipts} == set(range(BATCHES))
    return {receipt["label"].rsplit("-", 3)[1] for receipt in receipts}


def kill_executor(orders: Orders) -> psutil.Process:
    """SIGKILL for one executor's JVM alone: its Python workers have to notice by themselves."""
    executors = orders.cluster.executors()
    assert len(executors) == 2
    executors[0].kill()
    return executors[0]


def has_begun_again(orders: Orders) -> bool:
    """Whether the second micro-batch took more labels than the one that it takes without any trouble."""
    return len(orders.begun()) > 1


# --- plain runs ---


@pytest.mark.parametrize("options", [{"lanes": 1}, TASKS, SHUFFLE], ids=["one", "tasks", "shuffle"])
def test_a_plain_run(orders: Orders, options: dict[str, Any]) -> None:
    result = orders.submit(**options).finish()
    assert lanes_of(result) == {LANE}
    orders.judge()
    files = {module["file"] for module in result["imported"] if module["file"]}
    assert files == {str(ROOT / "starrocks_txn_sink" / "__init__.py")}


@both_layouts
def test_the_package_comes_as_an_archive(orders: Orders, options: dict[str, Any]) -> None:
    orders.shipment = Shipment.pack(orders.folder)
    result = orders.submit({}, **options).finish()
    orders.judge()
    folders = {module["folder"]: module["file"] for module in result["imported"]}
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
    [({"spark.python.worker.reuse": "false"}, TASKS), (DYNAMIC, TASKS), (DYNAMIC, SHUFFLE)],
    ids=["new_worker", "dynamic_tasks", "dynamic_shuffle"],
)
def test_a_setting_of_spark(orders: Orders, conf: dict[str, str], options: dict[str, Any]) -> None:
    lanes_of(orders.submit({**INSTALLED, **conf}, **options).finish())
    orders.judge()


def test_a_speculative_copy_of_a_lane(orders: Orders) -> None:
    """A lane's load hangs, so that Spark starts a copy of it in the other executor."""
    orders.fault({**HANGING_LOADS, "times": 1})
    result = orders.submit({**INSTALLED, **SPECULATION}, lanes=2).finish()
    assert lanes_of(result) == {LANE}
    label_counts = Counter(label.rsplit("-", 3)[1] for label in orders.begun())
    assert label_counts.pop(LANE) == 2, "the lost load rolls the first label back"
    assert max(label_counts.values()) > 2, "a copy claims its lane, which each label's try does once"
    orders.judge()


# --- ends of processes ---


@both_layouts
def test_an_executor_is_killed_while_it_loads(orders: Orders, options: dict[str, Any]) -> None:
    orders.fault({**HANGING_LOADS, "times": 2})
    driver = orders.submit(**options)
    orders.wait_for_fault(2)
    kill_executor(orders)
    lanes_of(driver.finish())
    assert has_begun_again(orders)
    orders.judge()


@pytest.mark.parametrize(
    ("options", "fault"),
    [(SHUFFLE, UNSEEN_COMMIT), (SHUFFLE, LATE_COMMIT), (TASKS, UNSEEN_COMMIT)],
    ids=["shuffle_unseen", "shuffle_late", "tasks_unseen"],
)
def test_an_executor_is_killed_while_a_commit_is_held(
    orders: Orders, options: dict[str, Any], fault: dict[str, Any]
) -> None:
    """`unseen`: committed, not visible until the kill; `late`: carried out long after its sender's end."""
    orders.fault(fault)
    driver = orders.submit(**options)
    orders.wait_for_fault(1)
    dead = kill_executor(orders)
    if fault is UNSEEN_COMMIT:
        wait_until(lambda: len([executor for executor in orders.cluster.executors() if executor != dead]) == 2)
        orders.server.faults({})
    lanes_of(driver.finish())
    orders.judge()


@both_layouts
def test_a_worker_is_killed_and_the_other_one_goes_on(orders: Orders, options: dict[str, Any]) -> None:
    orders.fault({**HANGING_LOADS, "times": 2})
    driver = orders.submit(**options)
    orders.wait_for_fault(2)
    orders.cluster.workers[0].kill()
    lanes_of(driver.finish())
    assert has_begun_again(orders)
    orders.judge()


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        (TASKS, [{**HANGING_LOADS, "times": 2}]),
        (TASKS, [LATE_COMMIT]),
        (SHUFFLE, [{**HANGING_LOADS, "times": 2}]),
        (SHUFFLE, [LATE_COMMIT]),
    ],
    ids=["tasks_load", "tasks_commit", "shuffle_load", "shuffle_commit"],
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
    assert {receipt["batch"] for receipt in second["receipts"]} == set(range(1, BATCHES))
    assert not psutil.wait_procs(executors, 20)[1], "an executor outlives its driver"
    orders.judge()


# --- refusals ---


def test_state_in_rocksdb_refuses_a_package_from_an_archive(orders: Orders) -> None:
    orders.shipment = Shipment.pack(orders.folder)
    rocksdb = {"spark.sql.streaming.stateStore.providerClass": ROCKSDB}
    message = orders.submit(rocksdb, task={"stage": True}).fail()
    assert (
        "The package comes from sink.zip (--py-files), and Spark hides that from the process on the driver" in message
    )
    assert not list((orders.folder / "checkpoint").glob("offsets/*"))


@pytest.mark.parametrize("where", ["checkpoint", "state_dir"])
def test_state_that_executors_do_not_see_is_refused_in_the_first_micro_batch(orders: Orders, where: str) -> None:
    """The path is absolute, and each process has another folder there: the one that it runs in."""
    message = orders.submit(task={where: "/proc/self/cwd/state"}, **SHUFFLE).fail()
    assert "does not see the state directory" in message
    assert "Driver and executors must share the checkpoint" in message
    assert orders.open_labels() == []
