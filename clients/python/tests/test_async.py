"""The same with asyncio, as far as it is code of its own."""

import asyncio
import functools
import threading
import time

import psycopg
import psycopg_pool
import pytest

from conftest import LONG
from lease_lock import AsyncLeases, Closed, LeaseLost, LeaseTaken


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


def is_held(server, resource):
    return server.sql("SELECT count(*) FROM lease_status WHERE resource = %s AND state = 'held'", resource) == [(1,)]


def waiters(server, resource):
    return server.sql("SELECT count(*) FROM lease_waiters WHERE resource = %s", resource)[0][0]


@in_loop
async def test_hold_excludes_until_the_end_of_the_block(dsn, server, slow):
    ttl = 9 * slow
    async with AsyncLeases(dsn) as leases:
        async with leases.hold("door", ttl=ttl, payload=[1]) as lease:
            assert isinstance(lease.token, int) and 0 < lease.remaining() < ttl and not lease.lost.is_set()
            assert await leases.try_hold("door") is None
            with pytest.raises(LeaseTaken) as taken:
                await leases.hold("door", wait=0.1)
            assert (taken.value.reason, taken.value.blocked_by) == ("held", lease.owner)
            deadline = lease._deadline
            await until(lambda: lease.lost.is_set() or lease._deadline > deadline)
            assert is_held(server, "door")
        second = await leases.hold("door")
        assert second.token > lease.token
        assert await second.release() and not await second.release()
        async with await leases.try_hold("door"):
            pass
        with pytest.raises(ZeroDivisionError):
            async with leases.hold("door"):
                1 / 0
        assert not is_held(server, "door")


@in_loop
async def test_a_busy_event_loop_does_not_stop_renewal(server, slow):
    async with AsyncLeases(server.dsn()) as leases, leases.hold("busy", ttl=9 * slow) as lease:
        time.sleep(10 * slow)
        assert is_held(server, "busy")
        lease.check()


@in_loop
async def test_a_broken_lease_is_lost_at_the_next_renewal(dsn, server):
    told = []

    async def on_lost(lease):
        told.append(lease)

    async with AsyncLeases(dsn) as leases:
        with pytest.raises(LeaseLost):
            async with leases.hold("broken", ttl=3, on_lost=on_lost) as lease:
                server.sql("SELECT lease_break('broken')")
                await asyncio.wait_for(lease.lost.wait(), LONG)
                with pytest.raises(LeaseLost):
                    async with lease.transaction():
                        pass
        await until(lambda: told == [lease])
        with pytest.raises(LeaseLost):
            async with leases.hold("broken", ttl=600):
                server.sql("SELECT lease_break('broken')")


@pytest.mark.parametrize("pooled", [False, True])
@in_loop
async def test_transaction_commits_or_rolls_back(server, make_proxy, pooled):
    server.sql("CREATE TABLE entry (id int PRIMARY KEY)")
    server.sql("SELECT lease_protect('entry', 'entry')")
    renewal = make_proxy()
    try:
        async with psycopg_pool.AsyncConnectionPool(server.dsn(), min_size=1, open=False) as pool:
            other = AsyncLeases(server.dsn(renewal.port))
            async with AsyncLeases(pool if pooled else server.dsn()) as leases:
                leases._keeper._connect = other._keeper._connect
                async with leases.hold("entry") as lease:
                    async with lease.transaction() as cursor:
                        await cursor.execute("INSERT INTO entry VALUES (1)")
                with pytest.raises(LeaseLost):
                    async with leases.hold("entry", ttl=2) as lease:
                        async with lease.transaction() as cursor:
                            await cursor.execute("INSERT INTO entry VALUES (2)")
                            renewal.silent.set()
                            await cursor.execute("SELECT pg_sleep(5)")
                renewal.close()
        assert server.sql("SELECT id FROM entry") == [(1,)]
    finally:
        server.sql("DROP TABLE entry")


@pytest.mark.parametrize("lost", [b"lease_request", b"lease_renew", b"lease_release", b"lease_assert"])
@in_loop
async def test_a_lost_answer_is_asked_for_again(proxy, server, slow, lost):
    async with AsyncLeases(server.dsn(proxy.port)) as leases:
        proxy.lose_answer_to = lost
        async with leases.hold("answer", ttl=9 * slow) as lease:
            await until(lambda: proxy.lose_answer_to is None or lost not in (b"lease_request", b"lease_renew"))
            async with lease.transaction() as cursor:
                await cursor.execute("SELECT 1")
            await asyncio.sleep(1)
            assert not lease.lost.is_set() and is_held(server, "answer")
        assert proxy.lose_answer_to is None
        assert not is_held(server, "answer")


@in_loop
async def test_a_cancelled_wait_leaves_nothing(dsn, server):
    async with AsyncLeases(dsn) as leases, leases.hold("cancel", ttl=600):
        waiting = asyncio.ensure_future(leases.hold("cancel", ttl=600, wait=None)._hold)
        await until(lambda: waiters(server, "cancel") == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: waiters(server, "cancel") == 0)
    assert not is_held(server, "cancel")


@in_loop
async def test_elect_cancels_and_stands_again(dsn, server, slow):
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

    async with AsyncLeases(dsn) as leases:
        assert await leases.elect("leader", run, ttl=9 * slow) == "done"
    assert cancelled == terms[:1] and terms[0] < terms[1]


@in_loop
async def test_elect_ends_with_an_error_of_its_function(server):
    async with AsyncLeases(server.dsn()) as leases:
        for error in (LeaseTaken("other", "held", None, None), LeaseLost("other", "mine"), psycopg.OperationalError("mine")):
            async def run(lease):
                raise error

            with pytest.raises(type(error)) as raised:
                await leases.elect("leader", run)
            assert raised.value is error and not is_held(server, "leader")


@in_loop
async def test_once_in_a_period(dsn):
    async with AsyncLeases(dsn) as leases:
        @leases.once("nightly", period=3600)
        async def job(lease, what):
            return what, lease.token > 0

        assert await job("swept") == ("swept", True)
        assert await job("swept") is None


@in_loop
async def test_close_releases_and_leaves_nothing(server):
    before = set(threading.enumerate())
    leases = AsyncLeases(server.dsn(application_name="async"))
    held = lambda: server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'async'")[0][0]
    lease = await leases.hold("close", ttl=600)
    waiting = asyncio.ensure_future(leases.hold("close", ttl=600, wait=None)._hold)
    await until(lambda: waiters(server, "close") == 1)
    assert set(threading.enumerate()) - before and held() > 0
    await leases.close()
    with pytest.raises(Closed):
        await waiting
    assert lease.lost.is_set() and not await lease.release()
    assert not set(threading.enumerate()) - before
    await until(lambda: held() == 0)
    assert not is_held(server, "close")
    with pytest.raises(Closed):
        await leases.hold("close")
