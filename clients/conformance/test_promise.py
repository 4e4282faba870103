"""What a holder does when the network, the server, its clock or the holder itself fails.

LEASES_ROUNDS leases are tried with a silent network, all at the same time, with a ttl of 3 s. By default there are 3,
with a ttl of 6 s.
"""

import contextlib
import os
import pathlib
import signal
import time

import psycopg
import pytest

from promise import granted_at, lost_before_granted
from servers import LONG, wait_until

ROUNDS = int(os.environ.get("LEASES_ROUNDS", "3"))
TTL = 3 if "LEASES_ROUNDS" in os.environ else 6     # a sixth of it is what the holder may be late


def next_lost(program):
    event = program.event("lost", reason="expired")
    return event["lease"], event["at"]


@pytest.fixture
def start_holder(client, request):
    """The client's program, which holds leases, each with a keeper of its own. With `own` it is started for this test."""
    def start(dsn, ttl, *resources, own=False, stderr=None, **env):
        program = request.getfixturevalue("start_program")(stderr, **env) if own or env else request.getfixturevalue("program")
        for resource in resources:
            program.open(dsn, client=resource)
            program.hold(resource, client=resource, ttl=ttl, wait=LONG)
        return program
    return start


def test_lost_before_granted_when_the_network_is_silent(server, proxy, slow, start_holder):
    resources = [f"silent:{n}" for n in range(ROUNDS)]
    holder = start_holder(server.dsn(proxy.port), TTL * slow, *resources)
    time.sleep(TTL * slow / 3)      # some of the renewals are on their way
    lost_before_granted(server, proxy, resources, lambda: next_lost(holder))


def test_lost_before_granted_behind_pgbouncer(server, pgbouncer, make_proxy, slow, start_holder):
    proxy = make_proxy(pgbouncer)
    holder = start_holder(server.dsn(proxy.port), TTL * slow, "silent:pooled")
    lost_before_granted(server, proxy, ["silent:pooled"], lambda: next_lost(holder))


@pytest.mark.parametrize("fault", ["drip", "answers swallowed"])
def test_lost_before_granted_when_answers_do_not_come(server, proxy, slow, start_holder, fault):
    holder = start_holder(server.dsn(proxy.port), 6 * slow, "answers")
    if fault == "drip":
        proxy.drip = {"answer"}
    else:
        proxy.swallow = {"answer"}
    event = holder.event("lost", lease="answers", reason="expired")
    proxy.silence()     # a renewal may have reached the server
    assert granted_at(server, "answers") > event["at"]


def test_the_end_of_a_call_is_not_confused_by_extra_float_digits(program, server, make_role, slow):
    """After a wait, the count starts when the lease was granted, and the setting does not round what the server tells."""
    role = make_role()
    role.alter("SET extra_float_digits = -15")
    program.open(role.dsn)
    program.hold("warm")
    server.sql("SELECT lease_acquire('digits', '1800 ms', 'first')")
    program.hold("digits", ttl=6 * slow)
    left = program("state", lease="digits")["remaining"]
    assert left <= server.time_left("digits") - slow * 0.9


def test_a_stepped_clock_changes_nothing(server, proxy, slow, start_holder, tmp_path):
    library = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if not library:
        pytest.skip("no libfaketime")
    offset = tmp_path / "offset"
    offset.write_text("+0\n")
    holder = start_holder(
        server.dsn(proxy.port), 12 * slow, "stepped", LD_PRELOAD=str(library), FAKETIME_TIMESTAMP_FILE=str(offset),
        FAKETIME_NO_CACHE="1", FAKETIME_DONT_FAKE_MONOTONIC="1", DONT_FAKE_MONOTONIC="1")
    for step in ("+1d\n", "-1d\n"):
        offset.write_text(step)
        server.wait_for_renewal("stepped")
        assert holder.events.empty()
    lost_before_granted(server, proxy, ["stepped"], lambda: next_lost(holder))


def test_a_short_silence_is_survived(server, proxy, slow, start_holder):
    holder = start_holder(server.dsn(proxy.port), 9 * slow, "short")

    def remaining():
        return holder("state", lease="short")["remaining"]
    soon_renewed = remaining() - 1.5 * slow
    wait_until(lambda: remaining() < soon_renewed)
    wait_until(lambda: remaining() > soon_renewed)      # the holder has its answer
    proxy.silence()
    time.sleep(4 * slow)    # more than a third of the ttl: a renewal gets no answer
    proxy.silence(False)
    server.wait_for_renewal("short")
    assert holder.events.empty()
    assert holder("release", lease="short") is True


def test_a_slow_network_is_survived(server, proxy, slow, start_holder):
    """To connect takes longer than an answer may take, and there is time for both."""
    slow = min(slow, 2)     # no longer than what to connect may take in any case
    holder = start_holder(server.dsn(proxy.port), 9 * slow, "slow")
    proxy.delay = {"request": 0.3 * slow, "answer": 0.3 * slow}
    proxy.cut()
    server.wait_for_renewal("slow")
    assert holder.events.empty()
    proxy.delay = {"request": 0, "answer": 0}
    assert holder("release", lease="slow") is True


def test_lost_before_granted_although_nobody_reads_the_log(client, server, proxy, slow, start_holder):
    """A log that is full keeps those waiting who write to it."""
    if client == "node":
        pytest.skip("all of Node.js waits for that, the holder included")
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writes, bytes(4096))
    os.set_blocking(writes, True)
    holder = start_holder(server.dsn(proxy.port), 6 * slow, "log", own=True, stderr=writes)
    lost_before_granted(server, proxy, ["log"], lambda: next_lost(holder))
    os.close(reads)     # else nobody could end it
    os.close(writes)


def test_a_killed_holder_keeps_the_lease_until_its_time_is_over(server, slow, start_holder):
    holder = start_holder(server.dsn(), 3 * slow, "killed", own=True)
    holder.process.kill()
    assert server.value("SELECT lease_acquire('killed', '1 min', 'other')") is False
    granted_at(server, "killed")
    assert holder.events.empty()


def test_a_stopped_holder_finds_out_when_it_goes_on(server, slow, start_holder):
    holder = start_holder(server.dsn(), 4 * slow, "stopped", own=True)
    holder.process.send_signal(signal.SIGSTOP)
    granted_at(server, "stopped")
    assert holder.events.empty()
    holder.process.send_signal(signal.SIGCONT)
    holder.event("lost", lease="stopped")
    assert holder("release", lease="stopped") is False
    holder.end()
    assert server.is_held("stopped")


def test_a_restart_is_survived(server, slow, start_holder):
    holder = start_holder(server.dsn(), 12 * slow, "restart")
    for mode in ("fast", "immediate"):
        server.control("restart", "-m", mode)
        assert server.is_held("restart")
        server.wait_for_renewal("restart")
    assert holder("release", lease="restart") is True


@pytest.mark.parametrize("way", ["address that moves", "several hosts", "several hosts, standby first"])
def test_a_failover_is_survived(another, make_proxy, slow, start_holder, client, way):
    if way != "address that moves" and client == "node":
        pytest.skip("node-postgres has one host")
    primary = another[0]
    standby = primary.standby("standby")
    another.append(standby)
    proxy = make_proxy(primary.port)
    dsn = primary.dsn(proxy.port)
    if way != "address that moves":
        ports = [proxy.port, standby.port]
        if "first" in way:
            ports.reverse()
        dsn = f"host=127.0.0.1,127.0.0.1 port={ports[0]},{ports[1]} user=postgres dbname=postgres"
    holder = start_holder(dsn, 18 * slow, "failover")
    wait_until(lambda: standby.is_held("failover"))
    if way == "several hosts":
        proxy.silence()     # the first host does not even refuse
    primary.kill()
    another.remove(primary)
    standby.control("promote")
    proxy.to = standby.port
    standby.wait_for_renewal("failover")
    assert holder("release", lease="failover") is True
    assert not standby.is_held("failover") and holder.events.empty()


@pytest.mark.parametrize("lost", ["lease_request", "lease_renew", "lease_release", "lease_assert"])
@pytest.mark.parametrize("action", ["cut", "cut answer"])
def test_a_lost_answer_is_asked_for_again(program, proxy, server, slow, lost, action):
    program.open(server.dsn(proxy.port))
    proxy.on(lost, action)
    program.hold("answer", ttl=9 * slow)
    if lost == "lease_renew":
        wait_until(lambda: proxy.seen)
        server.wait_for_renewal("answer")
    program("transaction", lease="answer", statements=["SELECT 1"])
    assert server.is_held("answer") and program.events.empty()
    assert program("release", lease="answer") is True
    assert proxy.seen == 1 and not server.is_held("answer")


def test_one_locked_row_does_not_lose_other_leases(program, server, slow):
    """One statement renews many leases: it must not fail for all of them."""
    program.open(server.dsn())
    for n in range(30):
        program.hold(f"many:{n}", ttl=9 * slow)
    with psycopg.connect(server.dsn()) as blocker:
        blocker.execute("SELECT FROM lease_lock WHERE resource = 'many:7' FOR UPDATE")
        program.event("lost", lease="many:7")
    for n in set(range(30)) - {7}:
        program("check", lease=f"many:{n}")
    assert program.events.empty()


def test_a_grant_that_is_undone_is_told_to_nobody(program, server, missing_standby, slow):
    """A wait that had to be repeated would be told that it has the lease, and then it is released."""
    server.sql("SELECT lease_acquire('sync', make_interval(secs => %s), 'other')", 9 * slow)
    program.open(server.dsn())
    waiting = program.start_hold("sync", wait=LONG)
    first = wait_until(lambda: server.waits("sync"))
    server.sql("SELECT pg_terminate_backend(%s)", first[0][0])
    wait_until(lambda: server.waits("sync") not in ([], first))
    missing_standby("nobody")
    wait_until(lambda: server.value("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
    time.sleep(1)       # what ends the grant waits for the standby, too
    assert not waiting.answered.is_set()
    missing_standby("")
    waiting.answer()
    time.sleep(3)       # whatever else is under way has its end
    assert server.is_held("sync")
    assert program("release", lease="sync") is True


@pytest.mark.parametrize("what", ["renewal", "grant"])
def test_a_synchronous_wait_that_was_cancelled_is_no_grant(program, server, make_role, missing_standby, slow, what):
    """It is known by the source function of the warning: a role hides the warnings, and their text is translated."""
    role = make_role(name="quiet")
    role.alter("SET client_min_messages = error")
    program.open(role.dsn)
    if what == "renewal":
        program.hold("sync", ttl=12 * slow)
    missing_standby("nobody")
    asked = program.start_hold("sync", ttl=60, wait=LONG, min_hold=3600) if what == "grant" else None
    for _ in range(2):
        wait_until(lambda: server.value(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = 'quiet' AND wait_event = 'SyncRep'"))
    if what == "renewal":
        assert program.event("lost", lease="sync")["reason"] == "expired"
    else:
        assert not asked.answered.is_set()
    missing_standby("")
    if asked:
        asked.answer()
        assert server.is_held("sync")
