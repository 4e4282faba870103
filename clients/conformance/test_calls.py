"""What each call does when nothing fails, and what its errors say."""

import threading
import time

import psycopg
import pytest

from servers import LONG, free_port, wait_until


def test_hold_excludes_until_it_is_released(program, dsn, server, slow):
    program.open(dsn)
    lease = program.hold("door", ttl=600, payload={"why": "paint"})
    assert 0 < lease["remaining"] <= 500
    assert server.sql("SELECT owner, token, payload FROM lease_status WHERE resource = 'door'") \
        == [(lease["owner"], int(lease["token"]), {"why": "paint"})]
    assert program.try_hold("door", "second") is None
    taken = program.error("hold", client="a", lease="second", resource="door", options={"wait": slow})
    assert (taken.name, taken.resource, taken.reason, taken.blocked_by) == ("LeaseTaken", "door", "held", lease["owner"])
    assert 400 < taken.blocked_for <= 600
    assert program("release", lease="door") is True
    second = program.try_hold("door")
    assert int(second["token"]) > int(lease["token"])
    program("end", lease="door")
    assert not server.is_held("door")


def test_modes_and_options(program, dsn, server):
    program.open(dsn)
    for mode in ({"mode": "shared"}, {"mode": "permit", "permits": 2}):
        for name in "xy":
            program.hold("atlas", name, **mode)
        assert program.try_hold("atlas", "z") is None
        for name in "xy":
            program("release", lease=name)
    outer, inner = (program.hold("again", name, if_own="count") for name in "xy")
    assert inner["token"] == outer["token"]
    program("release", lease="x")
    assert server.is_held("again")
    program("release", lease="y")
    assert not server.is_held("again")
    program.hold("kept", ttl=60, min_hold=60)
    program("release", lease="kept")
    assert program.try_hold("kept") is None
    assert program.error("hold", client="a", lease="x", resource="door", options={"mode": "sideways"}).sqlstate == "22023"


def test_a_wait_ends_with_the_release_and_counts_from_the_grant(program, dsn, server, slow):
    program.open(dsn)
    program.hold("queue", "first", ttl=600)
    waiting = program.start_hold("queue", "second", ttl=4 * slow, wait=LONG)
    wait_until(lambda: server.waiters("queue") == 1)
    server.sql("SELECT pg_sleep(%s)", 4 * slow + 0.5)       # longer than its ttl
    assert not waiting.answered.is_set()
    program("release", lease="first")
    assert 0 < waiting.answer()["remaining"] <= 4 * slow


def test_renewal_outlasts_the_ttl(program, dsn, server, slow):
    program.open(dsn)
    program.hold("long", ttl=4 * slow)
    for _ in range(3):
        server.wait_for_renewal("long")
    program("check", lease="long")


def test_a_lease_without_renewal_has_a_fixed_life(program, server, slow):
    program.open(server.dsn())
    program.hold("fixed", ttl=4 * slow, renew=False)
    assert program.event("lost")["reason"] == "expired"
    assert program.error("check", lease="fixed").reason == "expired"


def test_stop_before_says_when_the_holder_must_have_stopped(program, server, slow):
    program.open(server.dsn())
    assert program.hold("early", ttl=600, stop_before=500)["remaining"] <= 100
    program.hold("short", ttl=600, stop_before=600 - 3 * slow, renew=False)
    program.event("lost", lease="short")
    time.sleep(1)       # nobody else can have it while the holder stops
    assert server.is_held("short")
    assert program("release", lease="short") is False
    wait_until(lambda: not server.is_held("short"))


def test_a_release_without_an_answer_ends_one_hold_of_a_counted_lease(program, server, proxy):
    """It is not repeated: the second one would end the hold of somebody else."""
    program.open(server.dsn(proxy.port))
    for name in "xy":
        program.hold("again", name, if_own="count", wait=LONG)
    proxy.on("lease_release", "cut answer")
    assert program.error("release", lease="x").name == "OutcomeUnknown"
    program.hold("another")
    assert program("release", lease="another") is True
    assert server.is_held("again")
    assert program("release", lease="y") is True
    assert not server.is_held("again")


@pytest.mark.parametrize("why", ["in an outage", "without renewal"])
def test_a_counted_hold_that_ended_is_counted_down(program, server, proxy, slow, why):
    """Its time here is over, and at the server the owner's other hold keeps the lease."""
    program.open(server.dsn(proxy.port))
    program.hold("again", "outer", ttl=3600, if_own="count")
    program.hold("again", "inner", ttl=1.5 * slow, if_own="count", renew=why == "in an outage")
    if why == "in an outage":
        proxy.to = free_port()
        proxy.cut()
    program.event("lost", lease="inner", reason="expired")
    time.sleep(2.5 * slow)      # the loss is told before the end, and a renewal without an answer may have moved that
    proxy.to = server.port
    assert program("release", lease="inner") is False
    assert program("release", lease="outer") is True
    wait_until(lambda: not server.is_held("again"))


def test_a_short_hold_of_a_counted_lease_ends_after_a_long_one(program, server, slow):
    """The server keeps the lease for as long as the long one asked, until it is counted down."""
    program.open(server.dsn())
    program.hold("again", "long", ttl=3600, if_own="count")
    program.hold("again", "short", ttl=1.5 * slow, if_own="count", renew=False)
    assert program("release", lease="long") is True
    wait_until(lambda: not server.is_held("again"))


def test_close_ends_a_counted_hold_that_is_lost_at_once(program, server):
    """Its holder has some time to stop, and after close there is no holder."""
    program.open(server.dsn())
    program.hold("again", ttl=3600, stop_before=3599, if_own="count", renew=False)
    program.event("lost", lease="again", reason="expired")
    assert program("close", client="a") == []
    assert not server.is_held("again")


def test_a_loss_beside_other_readers_is_no_takeover(program, server, slow):
    program.open(server.dsn())
    program.hold("read", "other", ttl=600, mode="shared")
    owner = program.hold("read", "mine", ttl=6 * slow, mode="shared")["owner"]
    assert server.value("SELECT lease_release('read', %s)", owner)
    assert program.event("lost", lease="mine")["reason"] == "broken"


@pytest.mark.parametrize("how", ["broken", "taken_over"])
def test_a_loss_that_the_server_tells_has_its_reason(program, server, slow, how):
    program.open(server.dsn())
    program.hold("gone", ttl=6 * slow)
    server.sql("SELECT lease_break('gone')")
    if how == "taken_over":
        assert server.value("SELECT lease_acquire('gone', '1 hour', 'other')")
    assert program.event("lost", lease="gone")["reason"] == how
    lost = program.error("check", lease="gone")
    assert (lost.name, lost.resource, lost.reason) == ("LeaseLost", "gone", how)
    assert program.error("transaction", lease="gone", statements=["SELECT 1"]).name == "LeaseLost"
    assert program("release", lease="gone") is False


def test_a_late_release_says_that_the_lease_was_lost(program, dsn, server):
    program.open(dsn)
    program.hold("late", ttl=600)
    server.sql("SELECT lease_break('late')")
    lost = program.error("end", lease="late")
    assert (lost.name, lost.reason) == ("LeaseLost", "broken")
    program.hold("late", ttl=600)
    server.sql("SELECT lease_break('late')")
    assert program("release", lease="late") is False


def test_a_transaction_asserts_commits_and_rolls_back(program, dsn, server):
    server.sql("CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL); INSERT INTO account VALUES (1, 100)")
    try:
        server.protect("account", "account:{id}")
        program.open(dsn)
        program.hold("account:1", ttl=600)
        rows = program("transaction", lease="account:1",
                       statements=["UPDATE account SET balance = 70", "SELECT balance FROM account"])
        assert [list(row.values()) if isinstance(row, dict) else row for row in rows] == [[70]]
        failed = program.error("transaction", lease="account:1", statements=["UPDATE account SET balance = 1", "SELECT 1 / 0"])
        assert (failed.name, failed.sqlstate) == ("Driver", "22012")
        assert server.value("SELECT balance FROM account") == 70
        server.sql("SELECT lease_break('account:1')")
        lost = program.error("transaction", lease="account:1", statements=["UPDATE account SET balance = 0"])
        assert (lost.name, lost.reason) == ("LeaseLost", "broken")
        assert server.value("SELECT balance FROM account") == 70
    finally:
        server.sql("DROP TABLE account")


@pytest.mark.extension("does not know who waits")
def test_contended_says_that_somebody_waits(program, server, slow):
    program.open(server.dsn())
    program.hold("busy", ttl=3 * slow)
    wait_until(lambda: program("state", lease="busy")["contended"] is False)
    waiting = program.start_hold("busy", "second", wait=None)
    wait_until(lambda: program("state", lease="busy")["contended"])
    program("release", lease="busy")
    waiting.answer()


@pytest.mark.parametrize("fails", [False, True], ids=["heeds the loss", "fails by the loss"])
def test_elect_runs_while_leader_and_stands_again(program, server, slow, fails):
    program.open(server.dsn())
    election = program.start("elect", client="a", resource="leader", options={"ttl": 3 * slow}, fail=fails)
    first = program.event("elected", id=election.id)
    server.sql("SELECT lease_break('leader')")
    second = program.event("elected", id=election.id)
    assert int(second["token"]) > int(first["token"])
    program("go", of=election.id)
    assert election.answer() is None
    wait_until(lambda: not server.is_held("leader"))


def test_a_failed_run_under_a_permit_can_be_tried_again(program, server):
    program.open(server.dsn())
    job = {"client": "a", "resource": "permitted", "period": 3600}
    options = {"mode": "permit", "permits": 1}
    assert program.error("once", **job, fail=True, options={"retry_failed": True, **options}).name == "Failed"
    assert program("once", **job, options=options) is True


def test_once_in_a_period_and_a_failed_run_can_be_tried_again(program, server):
    program.open(server.dsn())
    job = {"client": "a", "resource": "nightly", "period": 3600}
    assert program.error("once", **job, fail=True, options={"retry_failed": True}).name == "Failed"
    assert program("once", **job) is True
    assert program("once", **job) is False
    server.sql("SELECT lease_break('nightly')")
    assert program.error("once", **job, fail=True).name == "Failed"
    assert program("once", **job) is False


def test_a_run_that_loses_its_lease_can_be_tried_again(program, server):
    """It fails when the lease is lost, so it has not done its work."""
    for client in "ab":
        program.open(server.dsn(), client)
    job = {"resource": "lost", "period": 3600}
    run = program.start("once", client="a", **job, fail=True, lasts=True, options={"retry_failed": True})
    program.event("began", id=run.id)
    assert program("close", client="a") == []
    assert run.error().name in ("Failed", "LeaseLost")
    assert program("once", client="b", **job) is True


@pytest.mark.parametrize("do, more", [("once", {}), ("once", {"retry_failed": True}), ("elect", {"min_hold": 3600})],
                         ids=["once", "once, retried", "elect"])
def test_a_run_that_was_closed_before_it_began_can_be_tried_again(program, server, do, more):
    """It has its lease, and nobody has worked."""
    for client in "ab":
        program.open(server.dsn(), client)
    job = {"resource": "granted", "period": 3600}
    run = program.start(do, client="a", **job, closed=True, options=more)
    assert run.answered.wait(LONG)
    assert program("once", client="b", **job) is True
    if do == "once":
        assert run.error().name == "Closed"     # else it has begun
    else:
        assert run.answer() is None


def test_a_failed_run_whose_row_is_locked_can_be_tried_again(program, server, proxy):
    """The release that is refused for the time of the lock is repeated."""
    program.open(server.dsn(proxy.port))
    job = {"client": "a", "resource": "locked", "period": 3600}
    repeated = threading.Event()
    with psycopg.connect(server.dsn()) as other:
        def lock_row():
            other.execute("SELECT FROM lease_lock WHERE resource = 'locked' FOR UPDATE")
            proxy.on("lease_release", repeated.set)
        proxy.on("lease_release", lock_row)
        run = program.start("once", **job, fail=True, options={"retry_failed": True})
        assert repeated.wait(LONG)
    assert run.error().name == "Failed"
    assert program("once", **job) is True


def test_a_lease_that_ends_while_it_is_given_back_is_not_taken_anew(program, server, proxy):
    program.open(server.dsn(proxy.port))
    job = {"client": "a", "resource": "ended", "period": 3600}
    with psycopg.connect(server.dsn()) as other:
        proxy.on("lease_release", lambda: other.execute("LOCK TABLE lease_lock IN EXCLUSIVE MODE"))
        run = program.start("once", **job, fail=True, options={"retry_failed": True})
        wait_until(lambda: server.value("SELECT count(*) FROM pg_locks "
                                        "WHERE relation = 'lease_lock'::regclass AND NOT granted") > 0)
        other.execute("SELECT lease_break('ended')")
    assert run.error().name in ("Failed", "LeaseLost")
    assert not server.is_held("ended")
    assert program("once", **job) is True


def test_close_releases_and_tells_those_that_wait(program, server):
    program.open(server.dsn(application_name="closes"))
    program.hold("close", ttl=600)
    waiting = program.start_hold("close", "second", wait=None)
    wait_until(lambda: server.waiters("close") == 1)
    assert program("close", client="a") == []
    assert waiting.error().name == "Closed"
    assert program("state", lease="close")["lost"] and program.error("check", lease="close").reason == "closed"
    assert program("release", lease="close") is False
    assert program.error("hold", client="a", lease="x", resource="x", options={}).name == "Closed"
    assert not server.is_held("close")
    wait_until(lambda: server.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'closes'") == 0)


def test_the_end_of_the_program_releases(server, start_program):
    for end in (lambda program: program.process.stdin.close(), lambda program: program.process.terminate()):
        program = start_program()
        program.open(server.dsn())
        for name in ("exit:1", "exit:2"):
            program.hold(name, ttl=600)
        end(program)
        assert program.process.wait(LONG) == 0
        assert server.held("exit:%") == []


def test_a_lease_that_nobody_refers_to_is_released(client, program, server):
    if client not in ("python", "asyncio", "ruby", "java"):
        pytest.skip("only where the language can tell")
    program.open(server.dsn())
    program.hold("dropped", ttl=600)

    def is_released():
        program("drop", lease="dropped")    # collects garbage each time: the thread that held may still refer to it at first
        return not server.is_held("dropped")
    wait_until(is_released)
