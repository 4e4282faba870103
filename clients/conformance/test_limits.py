"""Every call has an end, and a wait is the limit for everything, outages included."""

import pathlib
import threading
import time

import pytest

from servers import LONG, free_port, wait_until

# What the table of README.md allows, and as much again for a slow machine.
SHORT = 25


@pytest.mark.parametrize("why", ["occupied", "shut", "role is full"])
def test_a_transaction_begins_in_time_or_fails(program, server, make_role, slow, why):
    role = make_role()
    program.open({"kind": "pool", "conninfo": role.dsn, "size": 1, "min": 0})
    program.hold("t", ttl=6 * slow)
    if why == "occupied":
        program("occupy", client="a", number=1)
    elif why == "shut":
        program("shut", client="a")
    else:
        server.wait_for_renewal("t")    # the keeper has its connection
        role.alter("CONNECTION LIMIT 0")
    assert program.error("transaction", lease="t", statements=["SELECT 1"], limit=SHORT).name == "Driver"
    program("check", lease="t")
    assert program("release", lease="t") is True
    assert program("close", client="a", limit=SHORT) == []


def test_a_transaction_waits_for_a_server_that_is_full_for_a_moment(program, server, make_role):
    role = make_role()
    program.open({"kind": "pool", "conninfo": role.dsn, "size": 1, "min": 0})
    program.hold("t", ttl=600)
    role.alter("CONNECTION LIMIT 0")
    transaction = program.start("transaction", lease="t", statements=["SELECT 1"])
    time.sleep(0.5)
    role.alter("CONNECTION LIMIT -1")
    transaction.answer(limit=SHORT)


@pytest.mark.parametrize("when", ["connecting", "waiting"])
def test_close_ends_beside_a_wait_without_limit(program, server, proxy, when):
    server.sql("SELECT lease_acquire('w', '1 hour', 'other')")
    program.open(server.dsn(proxy.port))
    if when == "connecting":
        proxy.delay = {"request": 0.5, "answer": 0.5}
    waiting = program.start_hold("w", wait=None)
    wait_until(lambda: len(proxy.sockets) > 1 if when == "connecting" else server.waiters("w") == 1)
    assert program("close", client="a", limit=SHORT) == []
    assert waiting.error().name == "Closed"
    wait_until(lambda: server.waiters("w") == 0)


@pytest.mark.parametrize("fault", ["silence", "drip", "answers swallowed"])
def test_close_ends_in_time_and_says_what_it_could_not_end(program, server, proxy, fault):
    program.open(server.dsn(proxy.port))
    program.hold("left", ttl=20 * LONG)
    if fault == "silence":
        proxy.silence()
    elif fault == "drip":
        proxy.drip = {"answer"}
    else:
        proxy.swallow = {"answer"}
    left = program("close", client="a", timeout=2, limit=SHORT)
    assert left == ["left"]
    proxy.silence(False)
    proxy.drip = set()
    wait_until(lambda: not server.is_held("left"))      # it goes on


def test_wait_is_the_limit_while_the_server_is_away(program, server, make_proxy):
    port = free_port()      # nobody listens there
    program.open(server.dsn(port))
    since = time.monotonic()
    assert program.error("hold", client="a", lease="x", resource="x", options={"wait": 2}, limit=SHORT).name == "Driver"
    assert time.monotonic() - since >= 1
    assert program.error("hold", client="a", lease="x", resource="x", options={}, limit=SHORT).name == "Driver"
    coming = program.start_hold("x", wait=LONG)
    time.sleep(0.5)
    make_proxy(at=port)
    coming.answer()


def test_a_wait_that_is_over_before_it_has_a_connection_tells_who_has_the_lease(program, server, proxy):
    """The client cut that connection off itself, so that is no error of the server."""
    server.sql("SELECT lease_acquire('w', '1 hour', 'other')")
    program.open(server.dsn(proxy.port))
    program.hold("renewed")     # its connection may be the keeper's from now on
    program.hold("warm")
    proxy.mute_new = True
    taken = program.error("hold", client="a", lease="w", resource="w", options={"wait": 1})
    assert (taken.name, taken.reason) == ("LeaseTaken", "held")


def test_a_wait_without_room_for_a_connection_tries(program, server, make_role, make_proxy):
    """On the connection that has tried before."""
    role = make_role("CONNECTION LIMIT 1")
    server.sql("SELECT lease_acquire('w', '1 hour', 'other')")
    proxy = make_proxy()
    program.open(server.dsn(proxy.port, user=role.name))
    waiting = program.start_hold("w", wait=9)       # an idle connection may be closed after 10 seconds
    wait_until(lambda: len(proxy.sockets) > 3)      # a second connection, which the server refuses
    server.sql("SELECT lease_release('w', 'other')")
    waiting.answer(limit=SHORT)


def test_a_call_is_under_way_once(client, program, server, proxy):
    """More waits than may try at once break in an outage, and one later than the others. Each lease is kept that is granted."""
    def waits():
        return program("keeper", client="a")["waits"]

    names = [f"r{n}" for n in range(6)]
    waiting, sockets = [], {}
    program.open(server.dsn(proxy.port))
    for name in names:
        server.sql("SELECT lease_acquire(%s, '1 hour', 'other')", name)
        known = len(proxy.sockets)
        waiting.append(program.start_hold(name, wait=LONG))
        wait_until(lambda: server.waiters(name) == 1)
        sockets[name] = proxy.sockets[known:][-2:]
    proxy.silence()
    for name in names[:5]:
        proxy.cut(sockets[name])
    least = 1 if client == "node" else 4        # Node.js tries in turn after an error
    wait_until(lambda: waits() <= 1 and len(proxy.swallowed) >= least)
    tries = set(proxy.swallowed)
    proxy.cut(sockets[names[5]])
    wait_until(lambda: waits() == 0 or proxy.swallowed > tries)     # another waits in its place
    proxy.silence(False)
    for name in names:
        server.sql("SELECT lease_release(%s, 'other')", name)
    proxy.cut(tries)        # the others try now
    for name, wait in zip(names, waiting):
        wait.answer(limit=2 * SHORT)
    time.sleep(7)       # whatever else is under way has its end
    for name in names:
        assert program("release", lease=name) is True, name


@pytest.mark.full
def test_a_wait_that_ends_in_an_outage_tells_of_the_outage(program, server, proxy):
    server.sql("SELECT lease_acquire('w', '1 hour', 'other')")
    program.open(server.dsn(proxy.port))
    waiting = program.start_hold("w", wait=8)
    wait_until(lambda: server.waiters("w") == 1)
    proxy.silence()
    proxy.cut()
    assert waiting.error(limit=SHORT).name == "Driver"


def test_a_wait_without_limit_goes_on_behind_a_network_that_was_silent(program, server, proxy):
    """What connects again while nothing comes through does not wait for that for ever."""
    server.sql("SELECT lease_acquire('w', '1 hour', 'other')")
    program.open(server.dsn(proxy.port))
    waiting = program.start_hold("w", wait=None)
    wait_until(lambda: server.waiters("w") == 1)
    before = len(proxy.sockets)
    proxy.silence()
    proxy.cut()
    wait_until(lambda: len(proxy.sockets) > before)
    proxy.silence(False)
    server.sql("SELECT lease_release('w', 'other')")
    waiting.answer(limit=SHORT)


def test_a_wait_without_limit_notices_that_its_server_is_gone(program, server, proxy):
    """The system asks a peer that is silent, soon."""
    tcp = pathlib.Path("/proc/net/tcp")
    if not tcp.exists():
        pytest.skip("only on Linux")
    server.sql("SELECT lease_acquire('w', '1 hour', 'other')")
    program.open(server.dsn(proxy.port))
    program.start_hold("w", wait=None)
    wait_until(lambda: server.waiters("w") == 1)

    def timers():
        """Of connections to the proxy: kind (2: asks when nothing comes), and hundredths of a second. Java's are of IPv6."""
        lines = [line.split() for file in tcp.parent.glob("tcp*") for line in file.read_text().splitlines()[1:]]
        return [(int(line[5][:2]), int(line[5][3:], 16)) for line in lines
                if line[2].endswith(f"0100007F:{proxy.port:04X}") and line[3] == "01"]
    wait_until(lambda: timers() and all(kind == 2 for kind, _ in timers()))
    assert all(left < 1500 for _, left in timers())


def test_an_interrupted_statement_ends_behind_a_silent_network(program, server, proxy):
    """Whatever the driver does to cancel it."""
    program.open(server.dsn(proxy.port))
    program.hold("t", ttl=20 * LONG)
    command = program.start("transaction", lease="t", statements=[f"SELECT pg_sleep({LONG})"])
    wait_until(lambda: server.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))
    proxy.silence()
    try:
        program("interrupt", of=command.id)
        assert command.error(limit=SHORT).name == "Interrupted"
    finally:
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")


def test_a_server_without_room_for_another_connection_is_no_loss(program, server, make_role, slow):
    """What was granted the lease can renew it."""
    role = make_role("CONNECTION LIMIT 1")
    program.open(role.dsn)
    program.hold("one", ttl=6 * slow)
    server.wait_for_renewal("one")
    program("check", lease="one")
    assert program("release", lease="one") is True


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_wait_goes_on_when_an_administrator_ends_its_statement(program, server, how):
    program.open(server.dsn())
    server.sql("SELECT lease_acquire('x', '1 hour', 'other')")
    waiting = program.start_hold("x", wait=LONG)
    first = wait_until(lambda: server.waits("x"))
    assert server.value(f"SELECT {how}(%s)", first[0][0])
    wait_until(lambda: server.waits("x") not in ([], first))
    server.sql("SELECT lease_release('x', 'other')")
    waiting.answer()


def test_wait_goes_on_when_the_server_restarts(program, server):
    program.open(server.dsn())
    server.sql("SELECT lease_acquire('x', '1 hour', 'other')")
    waiting = program.start_hold("x", wait=LONG)
    wait_until(lambda: server.waiters("x") == 1)
    server.control("restart", "-m", "fast")
    wait_until(lambda: server.waiters("x") == 1)
    server.sql("SELECT lease_release('x', 'other')")
    waiting.answer()


def test_a_server_that_is_full_is_tried_again(program, make_role, slow):
    """53300 ends neither a wait nor an election."""
    role = make_role("CONNECTION LIMIT 0")
    program.open(role.dsn)
    assert program.error("hold", client="a", lease="x", resource="x", options={}, limit=SHORT).name == "Driver"
    waiting = program.start_hold("x", wait=LONG)
    election = program.start("elect", client="a", resource="leader", options={"ttl": 3 * slow})
    time.sleep(3)
    assert not waiting.answered.is_set() and not election.answered.is_set()
    role.alter("CONNECTION LIMIT -1")
    waiting.answer()
    program.event("elected", id=election.id)
    program("go", of=election.id)
    election.answer()


def test_a_read_only_server_is_tried_again_with_pauses(program, server, make_role):
    role = make_role()
    role.alter("SET default_transaction_read_only = on")
    program.open(role.dsn)
    rolled_back = "SELECT xact_rollback FROM pg_stat_database WHERE datname = 'postgres'"
    before = server.value(rolled_back)
    failed = program.error("hold", client="a", lease="x", resource="x", options={"wait": 3}, limit=SHORT)
    assert (failed.name, failed.sqlstate) == ("Driver", "25006")
    server.sql("SELECT pg_stat_force_next_flush()")
    assert server.value(rolled_back) - before < 30


def test_a_read_only_server_is_left_when_its_name_moves(program, server, proxy, make_role, slow):
    """Here, sessions that are there stay read-only, and new ones are not."""
    def wait_for_request(word):
        seen = threading.Event()
        proxy.on(word, seen.set)
        assert seen.wait(LONG)
    role = make_role()
    program.open(server.dsn(proxy.port, user=role.name))
    program.hold("kept", ttl=30 * slow)         # meanwhile it is not renewed
    role.alter("SET default_transaction_read_only = on")
    role.end_sessions()
    refused = lambda: program.error("transaction", lease="kept", statements=["CREATE TABLE x ()"]).sqlstate == "25006"
    assert any(refused() for _ in range(4))     # each has 5 s to connect, of which a slow machine may need more
    waiting = program.start_hold("x", wait=LONG)
    wait_for_request("lease_request")
    wait_for_request("lease_renew")
    role.alter("RESET default_transaction_read_only")
    waiting.answer()
    server.wait_for_renewal("kept")
    assert program("transaction", lease="kept", statements=["SELECT 1"])
    assert program.events.empty()


@pytest.mark.parametrize("what", ["mode", "password", "database"])
def test_a_mistake_is_raised_at_once(program, server, make_role, what):
    """Also a mistake of which the server tells when it refuses a connection, where a driver may hide the SQLSTATE."""
    if what == "password":
        role = make_role("PASSWORD 'secret'", name="locked")
    program.open({"mode": server.dsn(), "database": server.dsn(dbname="nowhere"),
                  "password": server.dsn(user="locked", password="guess")}[what])
    options = {"wait": 20 * LONG, "mode": "odd" if what == "mode" else "shared"}
    failed = program.error("hold", client="a", lease="x", resource="x", options=options, limit=SHORT)
    assert failed.name == "Driver"
    assert failed.sqlstate == "22023" or what != "mode"
    if what == "password":
        role.alter("PASSWORD 'guess'")
        program.hold("x", wait=LONG)


@pytest.mark.parametrize("fault", ["silence", "drip"])
def test_a_try_ends_in_time(program, server, proxy, fault):
    program.open(server.dsn(proxy.port))
    if fault == "silence":
        proxy.silence()
    else:
        proxy.drip = {"answer"}
    assert program.error("try", client="a", lease="x", resource="x", options={}, limit=SHORT).name in ("Driver", "OutcomeUnknown")


def test_a_program_ends_although_the_network_is_silent(start_program, server, proxy):
    program = start_program()
    program.open(server.dsn(proxy.port))
    program.hold("end", ttl=20 * LONG)
    proxy.silence()
    program.process.stdin.close()
    assert program.process.wait(SHORT) is not None
