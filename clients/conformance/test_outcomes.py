"""An unknown outcome is not reported as a known one."""

import os

import pytest

from servers import LONG, wait_until


@pytest.fixture
def table(server):
    server.sql("CREATE TABLE entry (id int)")
    yield lambda: [row[0] for row in server.sql("SELECT id FROM entry ORDER BY 1")]
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outcome'")
    server.sql("DROP TABLE entry")


@pytest.mark.parametrize("action", ["swallow answer", "cut answer"])
def test_a_commit_without_an_answer_is_unknown(program, server, proxy, make_proxy, slow, table, action):
    """Only the connection of the transaction fails: the lease goes on being renewed."""
    program.open({"kind": "pool", "conninfo": server.dsn(make_proxy(proxy.port).port), "size": 1})
    program.hold("c", ttl=6 * slow)
    proxy.on("COMMIT", action)
    unknown = program.error("transaction", lease="c", statements=["INSERT INTO entry VALUES (1)"], limit=12 * slow)
    assert unknown.name == "OutcomeUnknown"
    assert table() == [1]
    program("check", lease="c")
    assert program("release", lease="c") is True


@pytest.mark.parametrize("level", ["notice", "error"])
def test_a_commit_whose_synchronous_wait_was_cancelled_is_unknown(program, server, make_role, table, missing_standby, level):
    """It is done here, and a failover may undo it. A role may hide the warning that says so."""
    role = make_role()
    role.alter(f"SET client_min_messages = {level}")
    server.sql("GRANT ALL ON entry TO app")
    program.open(f"{role.dsn} application_name=outcome")
    program.hold("s", ttl=600)
    command = program.start("transaction", lease="s", statements=["INSERT INTO entry VALUES (1)"], pause=True)
    program.event("paused", id=command.id)
    missing_standby("nobody")
    program("go", of=command.id)
    wait_until(lambda: server.value("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
    assert command.error().name == "OutcomeUnknown"
    missing_standby("")
    assert table() == [1]


def test_a_commit_that_did_not_arrive_is_unknown_too(program, server, proxy, slow, table):
    program.open(server.dsn(proxy.port, application_name="outcome"))
    program.hold("c", ttl=600)
    proxy.on("COMMIT", "cut")
    assert program.error("transaction", lease="c", statements=["INSERT INTO entry VALUES (1)"]).name == "OutcomeUnknown"
    assert table() == []


def test_a_commit_behind_a_silent_network_is_bounded_by_the_lease(program, server, proxy, slow, table):
    program.open(server.dsn(proxy.port, application_name="outcome"))
    program.hold("c", ttl=4 * slow)
    command = program.start("transaction", lease="c", statements=["INSERT INTO entry VALUES (1)"], pause=True)
    program.event("paused", id=command.id)
    proxy.silence()
    program("go", of=command.id)
    assert command.error(limit=8 * slow).name in ("OutcomeUnknown", "LeaseLost")


@pytest.mark.parametrize("when", ["between statements", "in a statement"])
def test_a_loss_in_a_transaction_rolls_back(program, server, proxy, slow, table, when):
    program.open(server.dsn(proxy.port, application_name="outcome"))
    program.hold("l", ttl=4 * slow)
    statements = ["INSERT INTO entry VALUES (1)"]
    if when == "in a statement":
        command = program.start("transaction", lease="l", statements=[*statements, f"SELECT pg_sleep({20 * LONG})"])
        wait_until(lambda: server.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))
    else:
        command = program.start("transaction", lease="l", statements=statements, pause=True)
        program.event("paused", id=command.id)
    proxy.silence()
    program.event("lost", lease="l")
    program("go", of=command.id)
    lost = command.error()
    assert (lost.name, lost.reason) == ("LeaseLost", "expired")
    proxy.cut()
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
    wait_until(lambda: server.value(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outcome' AND xact_start IS NOT NULL") == 0)
    assert table() == []


def test_a_deferred_error_of_commit_is_known(program, server, table):
    server.sql("ALTER TABLE entry ADD CONSTRAINT once UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
    program.open(server.dsn())
    program.hold("d", ttl=600)
    failed = program.error("transaction", lease="d", statements=["INSERT INTO entry VALUES (1), (1)"])
    assert (failed.name, failed.sqlstate) == ("Driver", "23505")
    assert table() == []


def test_a_request_with_an_owner_that_others_use_is_unknown(program, server, proxy):
    program.open(server.dsn(proxy.port))
    proxy.on("lease_request", "cut answer")
    assert program.error("hold", client="a", lease="o", resource="o", options={"owner": "shared", "ttl": 600}).name \
        == "OutcomeUnknown"
    assert server.is_held("o")


def test_an_idle_connection_that_the_server_has_closed_leaves_nothing_unknown(program, server, make_role):
    """The request was not sent."""
    role = make_role()
    program.open(role.dsn)
    for name in "xy":       # one connection for the keeper, and one for the next try
        program.hold(name)
    for name in "xy":
        program("release", lease=name)
    processes = [f"/proc/{pid}" for pid, in server.sql("SELECT pid FROM pg_stat_activity WHERE usename = 'app'")]
    role.end_sessions()
    wait_until(lambda: not any(os.path.exists(process) for process in processes))
    program.hold("o", owner="shared")
    assert program("release", lease="o") is True


def test_errors_say_who_ended_a_connection(program, server, proxy):
    """One that the client cut off was not closed by the server."""
    program.open(server.dsn(proxy.port))
    program.hold("warm")
    program("release", lease="warm")
    proxy.swallow = {"answer"}
    failed = program.error("hold", client="a", lease="x", resource="x", options={}, limit=60)
    assert "server closed the connection" not in failed.text
