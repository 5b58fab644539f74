"""A worker process: its collections leave alone what it has loaded, and it keeps resources for few option sets."""

from __future__ import annotations

import gc
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator

import psutil
import pyarrow as pa
import pytest
from pyspark import TaskContext

from starrocks_txn_sink.clock import Deadline, SystemClock
from starrocks_txn_sink.errors import NotSent
from starrocks_txn_sink.options import SinkOptions
from starrocks_txn_sink.protocol.wire import Operation, Reply, Request, Status
from starrocks_txn_sink.writer.runner import DaemonThreadPool
from starrocks_txn_sink.writer.worker import Attempt, ResourceCache, WorkerResources, settle_memory, settle_process
from tests.support.http_peer import Peer
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gc.unfreeze()
    settle_process.cache_clear()
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    pool = pa.default_memory_pool()
    yield
    pa.set_memory_pool(pool)
    gc.freeze()  # as the tests' loop does, so that later collections stay quick


def test_in_a_task_what_is_loaded_is_left_alone_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", object)
    gc.collect()  # of other tests
    before = len(gc.get_objects())
    settle_memory()
    assert gc.get_freeze_count() > before / 2
    assert len(gc.get_objects()) < before / 2


def test_only_the_first_task_does_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "get", object)
    settle_memory()
    frozen = gc.get_freeze_count()
    lists: list[list[int]] = [[] for _ in range(1000)]
    settle_memory()
    assert gc.get_freeze_count() <= frozen
    assert len(lists) == 1000


def test_outside_of_spark_nothing_changes() -> None:
    before = pa.default_memory_pool().backend_name
    settle_memory()
    assert gc.get_freeze_count() == 0
    assert pa.default_memory_pool().backend_name == before


@pytest.mark.parametrize(
    ("glibc", "pool_name", "pool"),
    [("glibc 2.36", None, "system"), ("", None, "mimalloc"), ("glibc 2.36", "mimalloc", "mimalloc")],
)
def test_a_task_takes_buffers_from_glibc_unless_the_user_has_chosen(
    glibc: str, pool_name: str | None, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa.set_memory_pool(pa.mimalloc_memory_pool())
    monkeypatch.setattr(TaskContext, "get", object)
    monkeypatch.setattr(os, "confstr", {"CS_GNU_LIBC_VERSION": glibc}.__getitem__)
    if pool_name is not None:
        monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", pool_name)
    settle_memory()
    assert pa.default_memory_pool().backend_name == pool


_ARENAS = """
import ctypes, os, sys, tempfile, threading
if sys.argv[1] == "sync":
    from starrocks_txn_sink.glibc import limit_arenas
    limit_arenas(1)
from pyspark import TaskContext
from starrocks_txn_sink.writer.worker import settle_memory

TaskContext.get = object
settle_memory()
libc, all_here = ctypes.CDLL(None), threading.Barrier(12)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p

def allocate():
    all_here.wait()
    libc.malloc(1000)
    all_here.wait()

threads = [threading.Thread(target=allocate) for _ in range(12)]
for thread in threads: thread.start()
for thread in threads: thread.join()
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(file.read().count(b"<heap nr="))
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="of glibc alone")
@pytest.mark.parametrize(
    ("process", "chosen", "arenas"), [("task", None, 2), ("task", "5", 5), ("sync", None, 1), ("sync", "5", 5)]
)
def test_the_threads_of_a_task_share_two_arenas_and_syncs_one_unless_the_user_has_chosen(
    process: str, chosen: str | None, arenas: int
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    environment |= {} if chosen is None else {"MALLOC_ARENA_MAX": chosen}
    command = [sys.executable, "-c", _ARENAS, process]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240, env=environment)
    assert int(ended.stdout) == arenas


def test_outside_of_a_task_each_attempt_is_another_one_and_none_of_sparks() -> None:
    first, second = Attempt.current(), Attempt.current()
    assert first.number != second.number
    assert min(first.number, second.number) > 1 << 32
    assert (first.lane, first.retry, first.stage) == (0, False, None)


# --- resources ---

PASSWORD = "geheim"
BEGIN = Request(Operation.BEGIN, "shop", "label")


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer(lambda caller, _: caller.answer({"Status": "OK"})) as new_peer:
        yield new_peer


@pytest.fixture
def cache() -> Iterator[ResourceCache]:
    new_cache = ResourceCache()
    yield new_cache
    new_cache.close()


def option_set(peer: Peer, number: int) -> SinkOptions:
    return SinkOptions(
        load_url=peer.url,
        database="shop",
        delivery="at-least-once",
        password=PASSWORD,
        load_parallelism=1 + number % 3,
        job=f"job-{number}",
    )


def send(resources: WorkerResources) -> Reply:
    """A request in one of the threads, whose connection then stays open."""
    answers: queue.SimpleQueue[Reply] = queue.SimpleQueue()
    deadline = Deadline.after(20, SystemClock())
    resources.threads.submit(lambda: answers.put(resources.transport.send(BEGIN, deadline)))
    return answers.get(timeout=20)


def living(pools: Iterable[DaemonThreadPool]) -> int:
    """The threads of `pools` that have not ended."""
    return sum(thread.is_alive() for pool in pools for thread in pool._threads)


def connections(peer: Peer) -> int:
    port = int(peer.url.rpartition(":")[2])
    open_now = psutil.Process().net_connections("tcp4")
    return sum(
        bool(connection.raddr) and connection.raddr.port == port and connection.status == "ESTABLISHED"
        for connection in open_now
    )


def test_twenty_option_sets_leave_two_sets_of_threads_and_connections(peer: Peer, cache: ResourceCache) -> None:
    pools: list[DaemonThreadPool] = []
    for number in range(20):
        with cache.lease(option_set(peer, number)) as resources:
            pools.append(resources.threads)
            assert send(resources).status is Status.OK
            assert connections(peer) <= 2
    last_two = sum(2 + number % 3 for number in (18, 19))
    wait_until(lambda: living(pools) == last_two)
    wait_until(lambda: connections(peer) == 2)
    cache.close()
    wait_until(lambda: living(pools) == 0)
    wait_until(lambda: connections(peer) == 0)


def test_the_same_options_get_the_same_resources_and_the_longest_unused_ones_go_first(
    peer: Peer, cache: ResourceCache
) -> None:
    first, second, third = (option_set(peer, number) for number in range(3))
    leases: dict[int, WorkerResources] = {}
    for number, options in enumerate((first, second, pickle.loads(pickle.dumps(first)), third)):
        with cache.lease(options) as leases[number]:
            send(leases[number])
    assert leases[2] is leases[0]
    assert send(leases[0]).status is Status.OK
    with pytest.raises(NotSent, match="closed"):
        leases[1].transport.send(BEGIN, Deadline.after(20, SystemClock()))


def test_resources_in_use_are_never_closed(peer: Peer, cache: ResourceCache) -> None:
    options = option_set(peer, 0)
    with cache.lease(options) as resources:
        for number in range(1, 6):
            with cache.lease(option_set(peer, number)) as more_resources:
                send(more_resources)
        cache.close()
        assert send(resources).status is Status.OK
        with cache.lease(options) as again:
            assert again is resources
        assert send(resources).status is Status.OK


def test_an_error_ends_the_resources_once_nobody_uses_them(peer: Peer, cache: ResourceCache) -> None:
    options = option_set(peer, 0)

    def fail() -> None:
        with cache.lease(options) as shared:
            assert shared is resources
            raise ZeroDivisionError

    with cache.lease(options) as resources:
        with pytest.raises(ZeroDivisionError):
            fail()
        assert send(resources).status is Status.OK  # a task that works on is left alone
        with cache.lease(options) as new:
            assert new is not resources
    with pytest.raises(NotSent, match="closed"):
        resources.transport.send(BEGIN, Deadline.after(20, SystemClock()))
    with cache.lease(options) as new_resources:
        assert new_resources is new
        assert send(new_resources).status is Status.OK


def test_many_threads_at_once_share_and_end_what_they_use(peer: Peer, cache: ResourceCache) -> None:
    pools, failures = set[DaemonThreadPool](), list[BaseException]()

    def use(number: int) -> None:
        try:
            for turn in range(10):
                with cache.lease(option_set(peer, (number + turn) % 4)) as resources:
                    pools.add(resources.threads)
                    assert send(resources).status is Status.OK
        except BaseException as failure:
            failures.append(failure)

    users = [threading.Thread(target=use, args=(number,)) for number in range(6)]
    for user in users:
        user.start()
    for user in users:
        user.join(60)
    assert failures == []
    cache.close()
    wait_until(lambda: living(pools) == 0)


def test_the_password_is_in_no_key(peer: Peer, cache: ResourceCache) -> None:
    with cache.lease(option_set(peer, 0)):
        (key,) = cache._kept
        assert PASSWORD.encode() not in key
        assert len(key) <= 64


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    script = """
        import threading
        from starrocks_txn_sink.writer.runner import DaemonThreadPool
        begun = threading.Event()
        pool = DaemonThreadPool(1, "test")
        pool.submit(lambda: (begun.set(), threading.Event().wait(600)))
        begun.wait(20)
    """
    lines = "\n".join(line.strip() for line in script.splitlines())
    assert subprocess.run([sys.executable, "-c", lines], timeout=60, check=False).returncode == 0
