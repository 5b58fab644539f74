"""The simulator as a test: some hundred schedules hold, equal seeds are equal, and planted bugs are noticed."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from starrocks_txn_sink.protocol.wire import LabelState, Operation, Request, Status
from tests.support.depth import scaled
from tests.support.model_server import Fault, ModelServer

from .prove import prove
from .sabotage import BUGS, seeds_needed
from .schedules import run_any
from .world import run_schedule

SCHEDULES = scaled(300)
ROOT = Path(__file__).parents[2]


def test_schedules_with_faults_keep_every_promise() -> None:
    messages: list[str] = []
    assert prove(SCHEDULES, messages.append, processes=1, run=run_any) == 0, messages
    summary = orjson.loads(messages[-1])
    assert summary["schedules"] == SCHEDULES
    assert summary["faults"] > SCHEDULES
    assert summary["first_failing_seed"] is None


def test_equal_seeds_give_equal_histories() -> None:
    for seed in (3, 8, 21):
        first: list[str] = []
        again: list[str] = []
        run_schedule(seed, first.append)
        run_schedule(seed, again.append)
        assert first == again
        assert len(first) > 20


def test_equal_seeds_give_equal_histories_in_every_process() -> None:
    """The order of a set depends on the process, so nothing may be drawn by it."""
    lines = "from tests.simulation.world import run_schedule; [run_schedule(seed, print) for seed in range(12)]"
    histories = {
        subprocess.run(
            [sys.executable, "-c", lines],
            check=True,
            capture_output=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": number},
        ).stdout
        for number in "123"
    }
    assert len(histories) == 1
    assert len(histories.pop()) > 1000


def test_the_page_has_the_number_of_planted_bugs() -> None:
    page = (ROOT / "docs/inside/reliability.md").read_text()
    assert f"| {len(BUGS)} planted: " in page


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_fits_the_code(name: str) -> None:
    """What it replaces is there, and is called as it was: otherwise the checker would notice a breakdown alone."""
    _, _, text, _ = seeds_needed(name, most=3)
    assert "does not fit the code" not in text


@pytest.mark.parametrize(
    "name",
    [
        "the ledger entry is left out",
        "the owner is not checked before the commit",
        pytest.param("an unknown outcome is taken for aborted", marks=pytest.mark.deep),
        pytest.param("a lane stops inside a source transaction", marks=pytest.mark.deep),
        "a load is sent again after a lost reply",
        pytest.param("more than the ledger has is left out", marks=pytest.mark.deep),
        "no rows were imported counts as a rejection",
        pytest.param("all suspects of a source partition are dead lettered as one", marks=pytest.mark.deep),
        pytest.param("a task that spark runs again loads under the label", marks=pytest.mark.deep),
        pytest.param("a source partition in two tasks is not noticed", marks=pytest.mark.deep),
        pytest.param("a second try does not mind the claim of the first", marks=pytest.mark.deep),
        "an aborted commit is taken for committed",
        "a repair writes rows that it read before the hold",
        "a repair writes behind its hold",
        "a repair that lost the job counts as written",
        pytest.param("without a ledger an unknown outcome is taken for committed", marks=pytest.mark.deep),
    ],
)
def test_a_planted_bug_is_noticed(name: str) -> None:
    _, seeds, _, _ = seeds_needed(name, 400)
    assert seeds is not None


# --- the model server itself ---


def request(operation: Operation, label: str = "l", **fields: object) -> Request:
    return Request(operation, "shop", label, **fields)  # type: ignore[arg-type]


def loaded(server: ModelServer, label: str = "l", table: str = "a") -> None:
    server.execute(request(Operation.BEGIN, label))
    server.execute(request(Operation.LOAD, label, table=table, body=[b"[1]"]))


def test_versions_of_a_table_become_visible_in_the_order_of_their_commits() -> None:
    server = ModelServer()
    for label in ("first", "second"):
        loaded(server, label)
        assert server.start_commit(label) is None
        assert server.finish_commit(label) is not None
    server.publish("second")
    assert server.commits == []
    server.publish("first")
    assert server.commits == ["first", "second"]


def test_nothing_is_torn_by_a_restart_and_a_commit_under_way_is_lost() -> None:
    for forget in (True, False):
        server = ModelServer()
        loaded(server)
        assert server.start_commit("l") is None
        assert "during committing" in server.execute(request(Operation.ROLLBACK)).message
        assert "already committing" in server.execute(request(Operation.COMMIT)).message
        server.restart(forget)
        assert server.finish_commit("l") is None
        assert server.tables == {}


@pytest.mark.parametrize(("generation", "ok"), [("B", True), ("C", False)])
def test_only_generation_b_says_ok_to_a_commit_that_rolled_back(generation: str, ok: bool) -> None:
    server = ModelServer(generation)
    loaded(server)
    assert (server.execute(request(Operation.COMMIT), Fault.ROLLED_BACK).status is Status.OK) is ok
    state = server.execute(request(Operation.LOAD_STATE)).state
    assert state is (LabelState.PREPARE if ok else LabelState.ABORTED)
    assert server.tables == {}


@pytest.mark.parametrize(
    ("generation", "state"), [("B", LabelState.UNKNOWN), ("C", LabelState.ABORTED)], ids=["B", "C"]
)
def test_another_client_may_roll_a_label_back_and_b_has_no_state_for_it(generation: str, state: LabelState) -> None:
    """Wire contract 6.2, 7.3."""
    server = ModelServer(generation)
    loaded(server)
    refused = server.execute(request(Operation.COMMIT), Fault.FOREIGN)
    assert "Can not commit CANCELLED" in refused.message
    assert server.execute(request(Operation.LOAD_STATE)).state is state
    assert server.execute(request(Operation.LOAD, table="a", body=[b"[2]"])).message.endswith("cancelled: ")
    assert server.tables == {}


def test_a_forgotten_label_can_be_begun_again_unless_the_history_still_has_its_commit() -> None:
    server = ModelServer()
    loaded(server)
    server.execute(request(Operation.COMMIT))
    del server.tasks["l"]
    assert server.execute(request(Operation.BEGIN)).status is not Status.OK
    server.forget("l")
    assert server.execute(request(Operation.BEGIN)).status is Status.OK


def test_a_backend_that_gave_up_is_not_noticed_by_a_commit() -> None:
    server = ModelServer()
    loaded(server)
    assert server.execute(request(Operation.LOAD, table="a", body=[b"[2]"]), Fault.BACKEND).status is not Status.OK
    assert server.execute(request(Operation.LOAD, table="a", body=[b"[3]"])).status is not Status.OK
    assert server.execute(request(Operation.COMMIT)).status is Status.OK
    assert list(itertools.chain(*server.tables.values())) == [1]
