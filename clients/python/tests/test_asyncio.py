"""What only asyncio has: cancellation, a busy event loop, coroutines as callbacks."""

import asyncio
import functools
import threading
import time

import psycopg
import psycopg_pool
import pytest

from lease_lock import AsyncLeases, LeaseLost, LeaseTaken
from servers import LONG


def in_loop(test):
    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 3 * LONG))
    return run


async def until(condition):
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.02)


@in_loop
async def test_blocks_and_awaits(server):
    async with AsyncLeases(server.dsn()) as leases:
        async with leases.hold("door", ttl=600) as lease:
            assert await leases.try_hold("door") is None
            async with lease.transaction() as cursor:
                await cursor.execute("SELECT 1")
                assert await cursor.fetchall() == [(1,)]
        second = await leases.hold("door")
        assert await second.release() and not await second.release()
        async with await leases.try_hold("door"):
            pass
        with pytest.raises(ZeroDivisionError):
            async with leases.hold("door"):
                1 / 0
        assert not server.is_held("door")


@in_loop
async def test_a_busy_event_loop_does_not_stop_renewal(server, slow):
    async with AsyncLeases(server.dsn()) as leases, leases.hold("busy", ttl=3 * slow) as lease:
        time.sleep(4 * slow)
        assert server.is_held("busy")
        lease.check()


@in_loop
async def test_the_event_loop_does_not_wait_for_a_name_server(server, tmp_path, monkeypatch):
    """libpq looks up the host of a service by itself, without a limit: not in the thread of the loop."""
    (tmp_path / "services").write_text(f"[jobs]\nhost=localhost\nport={server.port}\nuser=postgres\ndbname=postgres\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    connect, threads = psycopg.pq.PGconn.connect_start, set()

    def note(conninfo):
        threads.add(threading.current_thread())
        return connect(conninfo)

    monkeypatch.setattr(psycopg.pq.PGconn, "connect_start", note)
    async with AsyncLeases("service=jobs") as leases, leases.hold("jobs", ttl=600, wait=LONG) as lease:
        async with lease.transaction() as cursor:
            await cursor.execute("SELECT 1")
    assert threads and threading.current_thread() not in threads


@in_loop
async def test_a_coroutine_is_told_of_a_loss(server, slow):
    told = []

    async def on_lost(lease):
        told.append(lease)

    async with AsyncLeases(server.dsn()) as leases:
        with pytest.raises(LeaseLost):
            async with leases.hold("broken", ttl=2 * slow, on_lost=on_lost) as lease:
                server.sql("SELECT lease_break('broken')")
                await asyncio.wait_for(lease.lost.wait(), LONG)
        await until(lambda: told == [lease])


@in_loop
async def test_transactions_of_a_pool(server):
    async with psycopg_pool.AsyncConnectionPool(server.dsn(), min_size=1, open=False) as pool:
        async with AsyncLeases(pool) as leases, leases.hold("pool", ttl=600) as lease, lease.transaction() as cursor:
            await cursor.execute("SELECT 1")


@in_loop
async def test_elect_cancels_and_stands_again(server, slow):
    terms, cancelled = [], []

    async def run(lease):
        terms.append(lease.token)
        if len(terms) > 1:
            return "done"
        server.sql("SELECT lease_break('leader')")
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            cancelled.append(lease.token)
            raise

    async with AsyncLeases(server.dsn()) as leases:
        assert await leases.elect("leader", run, ttl=3 * slow) == "done"
    assert cancelled == terms[:1] and terms[0] < terms[1]


@in_loop
async def test_elect_ends_with_an_error_of_its_function(server):
    async with AsyncLeases(server.dsn()) as leases:
        for error in (LeaseTaken("other", "held", None, None), LeaseLost("other", "broken"), psycopg.OperationalError("mine")):
            async def run(lease):
                raise error

            with pytest.raises(type(error)) as raised:
                await leases.elect("leader", run)
            assert raised.value is error and not server.is_held("leader")


@in_loop
async def test_a_cancelled_transaction_rolls_back(server):
    server.sql("CREATE TABLE cancelled (id int)")
    try:
        async with AsyncLeases(server.dsn()) as leases, leases.hold("c", ttl=600) as lease:
            async def work():
                async with lease.transaction() as cursor:
                    await cursor.execute("INSERT INTO cancelled VALUES (1)")
                    await cursor.execute("SELECT pg_sleep(600)")

            task = asyncio.ensure_future(work())
            await until(lambda: server.value("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(6%%'"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(6%%'")
        assert server.value("SELECT count(*) FROM cancelled") == 0
    finally:
        server.sql("DROP TABLE cancelled")
