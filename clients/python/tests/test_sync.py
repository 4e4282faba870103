"""Leases with threads: what each call does when nothing goes wrong, and when the lease is lost or the answer is."""

import errno
import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import psycopg_pool
import pytest

from conftest import LONG, wait_until
from lease_lock import Closed, LeaseLost, Leases, LeaseTaken


def connections(server, name):
    return server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", name)[0][0]


def is_held(server, resource):
    return server.sql("SELECT count(*) FROM lease_status WHERE resource = %s AND state = 'held'", resource) == [(1,)]


def test_hold_excludes_until_the_end_of_the_block(dsn, server):
    with Leases(dsn) as leases:
        with leases.hold("door", ttl=600, payload={"why": "paint"}) as lease:
            assert isinstance(lease.token, int) and 0 < lease.remaining() < 600 and not lease.lost.is_set()
            assert server.sql("SELECT owner, token, payload FROM lease_status WHERE resource = 'door'") \
                == [(lease.owner, lease.token, {"why": "paint"})]
            assert lease.owner.split(":")[1] == str(os.getpid())
            assert leases.try_hold("door") is None
            with pytest.raises(LeaseTaken) as taken:
                leases.hold("door", wait=timedelta(milliseconds=100))
            assert (taken.value.reason, taken.value.blocked_by) == ("held", lease.owner)
            assert 400 < taken.value.blocked_for <= 600
        assert not lease.lost.is_set() and lease.remaining() == 0
        with leases.try_hold("door") as second:
            assert second.token > lease.token
        assert not is_held(server, "door")


def test_modes_and_options(dsn, server):
    with Leases(dsn) as leases:
        with leases.hold("atlas", mode="shared"), leases.hold("atlas", mode="shared"):
            assert leases.try_hold("atlas") is None
        with leases.hold("printer", mode="permit", permits=2), leases.hold("printer", mode="permit", permits=2):
            assert leases.try_hold("printer", mode="permit", permits=2) is None
        with leases.hold("again", if_own="count") as outer:
            with leases.hold("again", if_own="count") as inner:
                assert inner.token == outer.token
            assert is_held(server, "again")
        assert not is_held(server, "again")
        leases.hold("kept", ttl=60, min_hold=60).release()
        assert leases.try_hold("kept") is None
        with pytest.raises(TypeError):
            leases.hold("door", ttl="30")
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            leases.hold("door", mode="sideways")


def test_a_wait_ends_with_the_release(dsn, slow):
    ttl = 6 * slow
    with Leases(dsn) as leases, ThreadPoolExecutor(1) as pool:
        first = leases.hold("queue", ttl=600)
        waiting = pool.submit(leases.hold, "queue", ttl=ttl, wait=LONG)
        time.sleep(ttl + 0.5)       # longer than its ttl: the lease counts from the grant, not from the request
        assert not waiting.done()
        first.release()
        with waiting.result() as second:
            assert 0 < second.remaining() <= ttl


def test_renewal_outlasts_the_ttl(dsn, server, slow):
    with Leases(dsn) as leases, leases.hold("long", ttl=10 * slow) as lease:
        for _ in range(13):
            time.sleep(0.8 * slow)
            assert is_held(server, "long") and not lease.lost.is_set()


def test_time_counts_from_before_the_request(server, proxy, slow):
    ttl = 12 * slow
    with Leases(server.dsn(proxy.port)) as leases:
        leases.hold("warm").release()       # the connection is there
        proxy.delay = 0.3
        with leases.hold("slow", ttl=ttl) as lease:
            assert lease.remaining() <= ttl * 5 / 6 - 0.3
            deadline = lease._deadline
            wait_until(lambda: lease._deadline != deadline)
            assert lease.remaining() <= ttl * 5 / 6 - 0.3


def test_a_broken_lease_is_lost_at_the_next_renewal(dsn, server):
    told = []
    with Leases(dsn) as leases:
        with pytest.raises(LeaseLost):
            with leases.hold("broken", ttl=3, on_lost=told.append) as lease:
                server.sql("SELECT lease_break('broken')")
                assert lease.lost.wait(LONG)
                with pytest.raises(LeaseLost):
                    with lease.transaction():
                        pass
        wait_until(lambda: told == [lease])


def test_a_late_release_says_that_the_lease_was_lost(dsn, server):
    with Leases(dsn) as leases:
        with pytest.raises(LeaseLost):
            with leases.hold("late", ttl=600):
                server.sql("SELECT lease_break('late')")
        lease = leases.hold("late", ttl=600)
        assert lease.release() is True
        assert lease.release() is False
        with pytest.raises(LeaseLost):
            lease.check()


def test_an_error_of_the_block_releases_and_goes_on(dsn):
    with Leases(dsn) as leases:
        with pytest.raises(ZeroDivisionError):
            with leases.hold("error"):
                1 / 0
        leases.hold("error").release()


@pytest.fixture
def account(server):
    server.sql("CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL)")
    server.sql("INSERT INTO account VALUES (1, 100)")
    server.sql("SELECT lease_protect('account', 'account:{id}')")
    yield lambda: server.sql("SELECT balance FROM account")[0][0]
    server.sql("DROP TABLE account")


def test_transaction_writes_under_the_lease(dsn, account):
    with Leases(dsn) as leases, leases.hold("account:1") as lease:
        with lease.transaction() as cursor:
            cursor.execute("UPDATE account SET balance = 70")
        assert account() == 70
        with pytest.raises(ZeroDivisionError):
            with lease.transaction() as cursor:
                cursor.execute("UPDATE account SET balance = 0")
                1 / 0
        assert account() == 70


def test_transaction_asserts(dsn, server, account):
    with Leases(dsn) as leases:
        lease = leases.hold("account:1", ttl=600)
        server.sql("SELECT lease_break('account:1')")
        with pytest.raises(LeaseLost):
            with lease.transaction():
                pytest.fail("the lease is not held")
        assert lease.lost.is_set()


@pytest.mark.parametrize("pooled", [False, True])
def test_a_loss_in_the_middle_of_a_transaction_rolls_back(make_proxy, server, account, slow, pooled):
    """Renewal hangs; the transaction itself has a good connection, so only the loss can end it."""
    renewal = make_proxy()
    with psycopg_pool.ConnectionPool(server.dsn(), min_size=1) as pool:
        leases = Leases(pool if pooled else server.dsn())
        renewals = Leases(server.dsn(renewal.port))
        leases._keeper._connect = renewals._open
        with leases, renewals:
            with pytest.raises(LeaseLost):
                with leases.hold("account:1", ttl=8 * slow) as lease:
                    with lease.transaction() as cursor:
                        cursor.execute("UPDATE account SET balance = 1")
                        renewal.silent.set()
                        cursor.execute("SELECT pg_sleep(600)")
            # The connection was cut off: the server is still asleep.
            assert server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                              "WHERE state = 'active' AND query = 'SELECT pg_sleep(600)'") == [(True,)]
            with pytest.raises(LeaseLost):
                renewal.silent.clear()
                with leases.hold("account:1", ttl=2, wait=LONG) as lease, lease.transaction() as cursor:
                    cursor.execute("UPDATE account SET balance = 2")
                    renewal.silent.set()
                    assert lease.lost.wait(LONG)
            renewal.close()
    assert account() == 100


def test_a_pool_serves_all_but_the_renewals(server, account, slow):
    with psycopg_pool.ConnectionPool(server.dsn(), min_size=1, max_size=2, kwargs={"row_factory": psycopg.rows.dict_row}) as pool:
        with Leases(pool) as leases, leases.hold("account:1", ttl=10 * slow) as lease:
            time.sleep(4 * slow)
            with lease.transaction() as cursor:
                assert cursor.execute("UPDATE account SET balance = 5 RETURNING balance").fetchone() == {"balance": 5}
        with pool.connection() as connection:
            assert not connection.autocommit
    assert account() == 5


@pytest.mark.parametrize("lost", [b"lease_request", b"lease_renew", b"lease_release", b"lease_assert"])
def test_a_lost_answer_is_asked_for_again(proxy, server, slow, lost):
    with Leases(server.dsn(proxy.port)) as leases:
        proxy.lose_answer_to = lost
        with leases.hold("answer", ttl=9 * slow) as lease:
            wait_until(lambda: proxy.lose_answer_to is None or lost not in (b"lease_request", b"lease_renew"))
            with lease.transaction() as cursor:
                cursor.execute("SELECT 1")
            time.sleep(1)
            assert not lease.lost.is_set() and is_held(server, "answer")
        assert proxy.lose_answer_to is None
        assert not is_held(server, "answer")


def test_one_locked_row_does_not_lose_other_leases(server, slow):
    """One statement renews many leases: it must not fail for all of them."""
    with Leases(server.dsn()) as leases:
        held = [leases.hold(f"many:{n}", ttl=12 * slow) for n in range(50)]
        with psycopg.connect(server.dsn()) as blocker:
            blocker.execute("SELECT FROM lease_lock WHERE resource = 'many:7' FOR UPDATE")
            assert held[7].lost.wait(LONG)
        assert [n for n, lease in enumerate(held) if lease.lost.is_set()] == [7]


def test_lost_is_told_when_the_system_has_nothing_left_for_a_renewal(server):
    def fail(limit):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    told = []
    with Leases(server.dsn()) as leases:
        leases._keeper._connect = fail
        lease = leases.hold("system", ttl=2, on_lost=told.append)
        assert lease.lost.wait(LONG)
        wait_until(lambda: told == [lease])


def test_renewals_go_on_after_an_error_of_the_system(server, slow):
    failed, ttl = [], 20 * slow

    def fail_once(limit):
        if not failed:
            failed.append(limit)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return leases._open(limit)

    with Leases(server.dsn()) as leases:
        leases._keeper._connect = fail_once
        lease = leases.hold("system", ttl=ttl)
        lease._renew_at = 0
        wait_until(lambda: lease._renew_at > 0 and failed and lease.remaining() > ttl * 3 / 4 and leases._keeper._connection)


def test_a_connection_that_takes_long_to_open_is_used_all_the_same(server, slow):
    def connect(limit):
        time.sleep(limit + 0.2)
        return leases._open(limit)

    with Leases(server.dsn()) as leases:
        leases._keeper._connect = connect
        lease = leases.hold("slow", ttl=12 * slow)
        deadline = lease._deadline
        lease._renew_at = 0
        wait_until(lambda: lease.lost.is_set() or lease._deadline > deadline)
        lease.check()


def test_a_silent_name_server_does_not_keep_a_loss_from_being_told(server, slow, monkeypatch):
    """libpq gets addresses only: what looks names up, and waits, is a thread of Python."""
    connect, get_addresses, silent = psycopg.connect, socket.getaddrinfo, threading.Event()

    def connect_to_address(*args, **kwargs):
        assert kwargs["host"] == "localhost" or kwargs["host"].startswith("localhost,")
        assert "127.0.0.1" in kwargs["hostaddr"].split(",")
        return connect(*args, **kwargs)

    def ask(*args, **kwargs):
        silent.wait(LONG)
        return get_addresses(*args, **kwargs)

    monkeypatch.setattr(psycopg, "connect", connect_to_address)
    with Leases(server.dsn(application_name="names").replace("127.0.0.1", "localhost")) as leases:
        lease = leases.hold("names", ttl=9 * slow)
        wait_until(lambda: lease._keeper._connection)
        monkeypatch.setattr(psycopg, "connect", connect)
        monkeypatch.setattr(socket, "getaddrinfo", ask)
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'names'")
        assert lease.lost.wait(LONG)
        with pytest.raises(psycopg.OperationalError, match="in time"):
            leases._open(1)
        silent.set()


def test_500_leases_with_one_renewal_connection(server, slow):
    ttl = 12 * slow
    with Leases(server.dsn(application_name="crowd")) as leases:
        held = [leases.hold(f"crowd:{n}", ttl=ttl) for n in range(500)]
        statements = []
        ask = leases._keeper._ask
        leases._keeper._ask = lambda *args: (statements.append(time.monotonic()), ask(*args))[1]
        start = time.monotonic()
        time.sleep(10 * slow)
        rate = len(statements) / (time.monotonic() - start)
        print(f"500 leases with a ttl of {ttl} s: {rate:.2f} renewal statements per second")
        assert statements and not any(lease.lost.is_set() for lease in held)
        assert server.sql("SELECT count(*) FROM lease_status WHERE resource LIKE 'crowd:%' AND state = 'held'") == [(500,)]
        # Each group of leases that are renewed together is at least a twelfth of the ttl wide: some ten statements. A
        # server without CPU for a sixth of the ttl fails one, which is then asked for in 23 parts.
        assert len(statements) < 100
        wait_until(lambda: connections(server, "crowd") == 2)   # not that of a statement that was cut off
    assert server.sql("SELECT count(*) FROM lease_status WHERE resource LIKE 'crowd:%' AND state = 'held'") == [(0,)]


def test_close_releases_and_leaves_nothing(server):
    before = set(threading.enumerate())
    leases = Leases(server.dsn(application_name="close"))
    lease = leases.hold("close", ttl=600)
    leases.hold("other", ttl=600).release()
    assert set(threading.enumerate()) - before and connections(server, "close") > 0
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(leases.hold, "close", ttl=600, wait=None)
        wait_until(lambda: server.sql("SELECT count(*) FROM lease_waiters WHERE resource = 'close'") == [(1,)])
        leases.close()
        with pytest.raises(Closed):
            waiting.result(LONG)
    assert lease.lost.is_set() and lease.release() is False
    assert not set(threading.enumerate()) - before
    wait_until(lambda: connections(server, "close") == 0)
    assert not is_held(server, "close")
    with pytest.raises(Closed):
        leases.hold("close")


def test_elect_runs_while_leader_and_stands_again(dsn, server, slow):
    terms = []

    def run(lease):
        terms.append(lease.token)
        if len(terms) == 1:
            server.sql("SELECT lease_break('leader')")
            assert lease.lost.wait(LONG)
            return "never seen"
        return "done"

    with Leases(dsn) as leases:
        assert leases.elect("leader", run, ttl=9 * slow) == "done"
    assert len(terms) == 2 and terms[0] < terms[1]


@pytest.mark.parametrize("error", [
    LeaseTaken("other", "held", None, None), LeaseLost("other", "mine"), psycopg.OperationalError("mine"), Closed("other")])
def test_elect_ends_with_an_error_of_its_function(server, error):
    def run(lease):
        raise error

    with Leases(server.dsn()) as leases:
        with pytest.raises(type(error)) as raised:
            leases.elect("leader", run)
        assert raised.value is error and not is_held(server, "leader")


def test_elect_ends_with_close(server):
    leases = Leases(server.dsn())
    with Leases(server.dsn()) as other, other.hold("throne"), ThreadPoolExecutor(1) as pool:
        standing = pool.submit(leases.elect, "throne", lambda lease: "crowned")
        wait_until(lambda: server.sql("SELECT count(*) FROM lease_waiters WHERE resource = 'throne'") == [(1,)])
        leases.close()
        assert standing.result(LONG) is None


def test_once_in_a_period(dsn):
    with Leases(dsn) as leases:
        @leases.once("nightly", period=3600)
        def job(lease, what):
            return what, lease.token > 0

        assert job("swept") == ("swept", True)
        assert job("swept") is None


def test_a_child_process_has_no_lease(server, slow):
    """Neither may the child renew or release what the parent holds, nor end the parent's connections."""
    with Leases(server.dsn()) as leases, leases.hold("parent", ttl=9 * slow) as lease, leases.hold("count", if_own="count"):
        with lease.transaction() as cursor:
            cursor.execute("SELECT 1")
        child = os.fork()
        if child == 0:
            try:
                assert lease.lost.is_set() and lease.remaining() == 0 and not lease.release()
                assert leases.try_hold("parent") is None and leases.try_hold("count", if_own="count") is None
                leases.hold("child").release()
                leases.close()
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr)
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        time.sleep(10 * slow)
        assert not lease.lost.is_set() and is_held(server, "parent") and is_held(server, "count")
        with lease.transaction() as cursor:
            cursor.execute("SELECT 1")
