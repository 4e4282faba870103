"""What a holder in each language must do when the network, the server, its clock or the holder itself fails.

LEASES_ROUNDS holders are tried with a silent network, all at the same time, with a ttl of 3 s. By default there are 3,
with a longer ttl.
"""

import os
import pathlib
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import LONG, Server, wait_until
from lease_lock import Leases
from lease_lock._keeper import RENEW_AT

ROUNDS = int(os.environ.get("LEASES_ROUNDS", "3"))
TTL = 3 if "LEASES_ROUNDS" in os.environ else 15     # a sixth of it is what the holder may be late


def is_held(server, resource):
    return server.sql("SELECT count(*) FROM lease_status WHERE resource = %s AND state = 'held'", resource) == [(1,)]


def time_left(server, resource):
    rows = server.sql("SELECT extract(epoch FROM expires_in)::float8 FROM lease_status WHERE resource = %s", resource)
    return rows[0][0] if rows else 0


def wait_for_renewal(server, resource):
    """Watch the lease long enough to see it renewed."""
    before = time_left(server, resource)
    assert before > 0

    def renewed():
        nonlocal before
        left = time_left(server, resource)
        assert left > 0
        if left > before:
            return True
        before = left
        return False

    wait_until(renewed)


def lost_before_granted(server, holder, proxy, resources):
    """A holder that cannot reach the server knows that the lease is lost before a second one is granted it."""
    with Leases(server.dsn()) as leases, ThreadPoolExecutor(len(resources)) as pool:
        second = [pool.submit(leases.hold, resource, ttl=600, wait=LONG) for resource in resources]
        # A holder on a slow machine may have lost its lease already.
        wait_until(lambda: server.sql("SELECT count(*) FROM lease_waiters")[0][0]
                   + sum(future.done() for future in second) >= len(resources))
        proxy.silent.set()
        lost = {}
        for _ in resources:
            word, resource, moment = holder.lines.get(timeout=LONG)
            assert word == "lost"
            lost[resource] = float(moment)
        spare = []
        for resource, future in zip(resources, second):
            lease = future.result(LONG)
            granted = lease._renew_at - 600 * RENEW_AT
            spare.append(granted - lost[resource])
            lease.release()
    print(f"lost {min(spare):.3f} to {max(spare):.3f} s before the next grant, {len(spare)} times")
    assert min(spare) > 0


def test_lost_before_granted_when_the_network_is_silent(server, proxy, slow, start_holder):
    resources = [f"silent:{n}" for n in range(ROUNDS)]
    holder = start_holder(server.dsn(proxy.port), TTL * slow, *resources)
    time.sleep(TTL * slow / 2)      # some of the renewals are on their way
    lost_before_granted(server, holder, proxy, resources)


def test_lost_before_granted_behind_pgbouncer(server, pgbouncer, make_proxy, slow, start_holder):
    proxy = make_proxy(pgbouncer)
    holder = start_holder(server.dsn(proxy.port), TTL * slow, "silent:pooled")
    lost_before_granted(server, holder, proxy, ["silent:pooled"])


def test_a_stepped_clock_changes_nothing(server, proxy, slow, start_holder, tmp_path):
    library = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if not library:
        pytest.skip("no libfaketime")
    offset = tmp_path / "offset"
    offset.write_text("+0\n")
    holder = start_holder(
        server.dsn(proxy.port), 15 * slow, "stepped", LD_PRELOAD=str(library), FAKETIME_TIMESTAMP_FILE=str(offset),
        FAKETIME_NO_CACHE="1", FAKETIME_DONT_FAKE_MONOTONIC="1", DONT_FAKE_MONOTONIC="1")
    for step in ("+1d\n", "-1d\n"):
        offset.write_text(step)
        wait_for_renewal(server, "stepped")
        assert not list(holder.lines.queue)
    lost_before_granted(server, holder, proxy, ["stepped"])


def test_a_short_silence_is_survived(server, proxy, slow, start_holder):
    holder = start_holder(server.dsn(proxy.port), 30 * slow, "short")
    wait_for_renewal(server, "short")
    proxy.silent.set()
    time.sleep(10 * slow + 1)   # more than a third of the ttl: a renewal gets no answer
    proxy.silent.clear()
    wait_for_renewal(server, "short")
    assert not list(holder.lines.queue)
    holder.end()
    assert not is_held(server, "short")


def test_exit_releases(server, start_holder):
    for end in (lambda holder: holder.process.stdin.close(), lambda holder: holder.process.terminate()):
        holder = start_holder(server.dsn(), 600, "exit:1", "exit:2")
        assert is_held(server, "exit:1") and is_held(server, "exit:2")
        end(holder)
        assert holder.process.wait(LONG) == 0
        assert not is_held(server, "exit:1") and not is_held(server, "exit:2")


def test_a_killed_holder_keeps_the_lease_until_its_time_is_over(server, slow, start_holder):
    holder = start_holder(server.dsn(), 9 * slow, "killed")
    holder.process.kill()
    with Leases(server.dsn()) as leases:
        assert leases.try_hold("killed") is None
        leases.hold("killed", wait=LONG)
    assert not list(holder.lines.queue)


def test_a_stopped_holder_finds_out_when_it_goes_on(server, slow, start_holder):
    holder = start_holder(server.dsn(), 6 * slow, "stopped")
    holder.process.send_signal(signal.SIGSTOP)
    with Leases(server.dsn()) as leases, leases.hold("stopped", wait=LONG):
        assert not list(holder.lines.queue)
        holder.process.send_signal(signal.SIGCONT)
        holder.next("lost", "stopped")
        holder.end()
        assert is_held(server, "stopped")


@pytest.fixture
def another(tmp_path):
    """A server that may be stopped."""
    server = Server(tmp_path, "another").init().start()
    server.sql("CREATE EXTENSION lease_lock")
    started = [server]
    yield started
    for server in started:
        server.control("stop", "-m", "immediate")


def test_a_restart_is_survived(another, slow, start_holder):
    server = another[0]
    holder = start_holder(server.dsn(), 20 * slow, "restart")
    for mode in ("fast", "immediate"):
        server.control("restart", "-m", mode)
        assert is_held(server, "restart")
        wait_for_renewal(server, "restart")
    holder.end()
    assert not is_held(server, "restart")


@pytest.mark.parametrize("way", ["address that moves", "several hosts"])
def test_a_failover_is_survived(another, make_proxy, slow, start_holder, way, request):
    primary = another[0]
    standby = primary.standby("standby")
    another.append(standby)
    proxy = make_proxy(primary.port)
    if way == "several hosts":
        if "node" in request.node.name:
            pytest.skip("node-postgres has one host")
        dsn = (f"host=127.0.0.1,127.0.0.1 port={proxy.port},{standby.port} target_session_attrs=read-write "
               "user=postgres dbname=postgres")
    else:
        dsn = primary.dsn(proxy.port)
    holder = start_holder(dsn, 30 * slow, "failover")
    wait_until(lambda: is_held(standby, "failover"))
    if way == "several hosts":
        proxy.silent.set()      # the first host does not even refuse
    primary.kill()
    another.remove(primary)
    standby.control("promote")
    proxy.to = standby.port
    wait_for_renewal(standby, "failover")
    holder.end()
    assert not is_held(standby, "failover")
    assert not list(holder.lines.queue)
