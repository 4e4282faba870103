"""What only Python has, with threads: fork, signals, pickle, garbage, the end of the interpreter, types."""

import gc
import ipaddress
import itertools
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import psycopg_pool
import pytest

from conftest import CLIENTS
from lease_lock import Cancel, Cancelled, Closed, LeaseError, LeaseLost, Leases, LeaseTaken, OutcomeUnknown
from lease_lock import _core, _keeper, _request, _source
from lease_lock._loop import now
from servers import LONG, wait_until


def test_times_are_seconds_or_timedelta(server):
    with Leases(server.dsn()) as leases:
        with leases.hold("door", ttl=timedelta(minutes=10)) as lease:
            assert 490 < lease.remaining() <= 500 and isinstance(lease.token, int)
            assert lease.owner.split(":")[1] == str(os.getpid())
        for wrong in ({"ttl": "30"}, {"ttl": True}, {"tll": 30}, {"wait": float("nan")}):
            with pytest.raises(TypeError):
                leases.hold("door", **wrong)
        for wrong in ({"ttl": 0}, {"ttl": 3, "stop_before": 3}, {"wait": -0.1}):
            with pytest.raises(ValueError):
                leases.hold("door", **wrong)


def test_the_end_of_a_block(server):
    with Leases(server.dsn()) as leases:
        with pytest.raises(ZeroDivisionError):
            with leases.hold("error"):
                1 / 0
        with pytest.raises(LeaseLost) as lost:
            with leases.hold("error", ttl=600):
                server.sql("SELECT lease_break('error')")
        assert lost.value.reason == "broken"
        with leases.hold("error") as lease:
            assert lease.release() is True and lease.release() is False
        with pytest.raises(LeaseLost, match="released"):
            lease.check()
        with leases.hold("brief", ttl=4.5, wait=LONG) as lease:
            assert lease.release() is True
            time.sleep(4.6)     # its time would be over
        with pytest.raises(LeaseLost, match="released"):
            lease.check()


def test_close_leaves_no_thread(server):
    before = set(threading.enumerate())
    leases = Leases(server.dsn())
    held = [leases.hold(f"close:{n}", ttl=3600) for n in range(2)]

    def wait():
        with pytest.raises(Closed):
            leases.hold("close:0", wait=3600)
    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: server.waiters("close:0") == 1)
    assert leases.close() == [] and all(lease.lost for lease in held)
    waiting.join()
    wait_until(lambda: not set(threading.enumerate()) - before)


@pytest.mark.parametrize("error", [
    LeaseTaken("r", "held", "ann", 1.5), LeaseLost("r", "taken_over"), OutcomeUnknown("text", "r"), Closed("text", "r")])
def test_errors_can_be_pickled(error):
    """A ProcessPoolExecutor breaks if they cannot."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and isinstance(again, LeaseError)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_the_table_of_errors_is_that_of_all_clients():
    assert (CLIENTS / "python/lease_lock/errors.tsv").read_text() == (CLIENTS / "conformance/errors.tsv").read_text()


def test_the_half_for_threads_is_generated():
    subprocess.run([sys.executable, CLIENTS / "python/generate_sync", "--check"], check=True)


def test_types(tmp_path):
    """Options are checked: a misspelt one is an error."""
    mypy = pytest.importorskip("mypy.api")
    program = tmp_path / "misspelt.py"
    program.write_text("import lease_lock\nlease_lock.Leases().hold('r', tll=3)\n")
    text, _, _ = mypy.run(["--strict", "--ignore-missing-imports", "--enable-incomplete-feature=Unpack", f"--cache-dir={tmp_path}",
                           str(program), str(CLIENTS / "python/lease_lock")])
    assert 'Unexpected keyword argument "tll"' in text and "Found 1 error" in text


def test_a_lease_that_nobody_refers_to_is_released_with_a_warning(server):
    with Leases(server.dsn()) as leases, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        leases.hold("dropped", ttl=600)
        wait_until(lambda: not server.is_held("dropped"))
        wait_until(lambda: [str(one.message) for one in told if one.category is ResourceWarning]
                   == ['lease on "dropped" was not released'])


def test_a_lease_that_nobody_refers_to_is_released_although_warnings_are_errors(server):
    with Leases(server.dsn()) as leases, warnings.catch_warnings():
        warnings.simplefilter("error")
        leases.hold("dropped", ttl=600)
        wait_until(lambda: not server.is_held("dropped"))


def test_leases_that_nobody_closed_close_with_a_warning(server):
    leases = Leases(server.dsn(application_name="unclosed"))
    leases.hold("x").release()
    with pytest.warns(ResourceWarning, match="Leases was not closed"):
        del leases
        gc.collect()
    wait_until(lambda: server.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'unclosed'") == 0)


def test_an_interruption_before_the_call_has_begun_is_not_replaced(server, monkeypatch):
    with Leases(server.dsn()) as leases:
        def interrupted(call):
            raise KeyboardInterrupt
        monkeypatch.setattr(leases._core, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            leases.hold("early", cancel=Cancel())


def test_a_wait_can_be_cancelled_from_another_thread(server):
    with Leases(server.dsn()) as leases, leases.hold("taken", ttl=600), ThreadPoolExecutor(2) as threads:
        cancel = Cancel()
        waiting = [threads.submit(leases.hold, "taken", wait=None, cancel=cancel) for _ in range(2)]
        wait_until(lambda: server.waiters("taken") == 1)
        cancel.cancel()
        for one in waiting:
            with pytest.raises(Cancelled):
                one.result(LONG)
        wait_until(lambda: server.waiters("taken") == 0)
        with pytest.raises(Cancelled):
            leases.hold("taken", wait=None, cancel=cancel)


def test_close_in_a_signal_handler_while_the_main_thread_waits(server):
    leases = Leases(server.dsn())
    with Leases(server.dsn()) as others, others.hold("main", ttl=600):
        previous = signal.signal(signal.SIGUSR2, lambda *_: leases.close())
        threading.Thread(target=lambda: (wait_until(lambda: server.waiters("main") == 1),
                                         os.kill(os.getpid(), signal.SIGUSR2))).start()
        with pytest.raises(Closed):
            leases.hold("main", wait=None)
        signal.signal(signal.SIGUSR2, previous)


def run(source, *args, limit=LONG):
    return subprocess.run([sys.executable, "-c", source, *args], env={**os.environ, "PYTHONPATH": str(CLIENTS / "python")},
                          cwd="/", timeout=limit, capture_output=True, text=True, check=False)


def test_a_callback_that_does_not_end_does_not_keep_the_interpreter_alive(server):
    done = run("""
import sys, threading, time
from lease_lock import Leases
called = threading.Event()
def forever(lease):
    called.set()
    time.sleep(10_000)
lease = Leases(sys.argv[1]).hold("forever", ttl=1, renew=False, on_lost=forever)
called.wait()
""", server.dsn())
    assert done.returncode == 0, done.stderr


def test_what_is_held_is_released_at_exit(server):
    """Also if no thread can be started any longer, as in Python 3.12."""
    done = run("""
import atexit, sys, _thread
def refuse(*_):
    raise RuntimeError("can't create new thread at interpreter shutdown")
from lease_lock import Leases
leases = Leases(sys.argv[1])
lease = leases.hold("exit", ttl=600)
def shutdown():
    _thread.start_new_thread = refuse
atexit.register(shutdown)
""", server.dsn())
    assert done.returncode == 0, done.stderr
    assert not server.is_held("exit")


def test_a_child_process_has_no_lease(server, slow):
    """Neither may the child renew or release what the parent holds, nor end the parent's connections."""
    with Leases(server.dsn()) as leases, leases.hold("parent", ttl=3 * slow) as lease, leases.hold("count", if_own="count"):
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
        time.sleep(4 * slow)
        assert not lease.lost.is_set() and server.is_held("parent") and server.is_held("count")
        with lease.transaction() as cursor:
            cursor.execute("SELECT 1")


def test_a_transaction_on_a_connection_of_the_users(server):
    with Leases(server.dsn()) as leases, leases.hold("mine", ttl=600) as lease:
        for autocommit in (False, True):
            with psycopg.connect(server.dsn(), autocommit=autocommit) as connection:
                with lease.transaction(connection) as cursor:
                    assert cursor.connection is connection
                    cursor.execute("CREATE TEMP TABLE IF NOT EXISTS t AS SELECT 1")
                assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
                connection.execute("BEGIN")
                with pytest.raises(ValueError), lease.transaction(connection):
                    pass


def test_a_failed_transaction_cannot_be_committed(server):
    with Leases(server.dsn()) as leases, leases.hold("failed", ttl=600) as lease:
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            with lease.transaction() as cursor:
                with pytest.raises(psycopg.errors.DivisionByZero):
                    cursor.execute("SELECT 1 / 0")


def test_a_loss_just_before_commit_has_a_known_outcome(server):
    with Leases(server.dsn()) as leases:
        lease = leases.hold("cut", ttl=600)
        check = lease.check
        with pytest.raises(LeaseLost, match="closed"), lease.transaction():
            lease.check = lambda: (check(), leases.close(0))


def test_a_guard_is_ended_wherever_its_making_is_interrupted(server):
    making = [each.__code__ for each in (_core.Core.guard, _core.Guard.__init__, _core.Guard.begin)]
    with Leases(server.dsn()) as leases, leases.hold("guarded", ttl=600) as lease:
        for steps in itertools.count(1):
            left = steps

            def step(frame, event, arg):
                nonlocal left
                if frame.f_code not in making:
                    return None
                left -= event == "line"
                if left == 0:
                    raise KeyboardInterrupt
                return step

            sys.settrace(step)
            try:
                with lease.transaction():
                    break
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            wait_until(lambda: not leases._core._guards)
        assert steps > 5


def test_rows_of_a_pool_are_as_it_makes_them(server):
    options = {"row_factory": psycopg.rows.dict_row}
    with psycopg_pool.ConnectionPool(server.dsn(), min_size=1, max_size=2, kwargs=options) as pool:
        with Leases(pool) as leases, leases.hold("dict", ttl=600) as lease, lease.transaction() as cursor:
            assert cursor.execute("SELECT 1 AS one").fetchone() == {"one": 1}
        with pool.connection() as connection:
            assert not connection.autocommit


def test_a_pool_does_not_keep_a_connection_to_a_read_only_server(server, make_role):
    """Here, sessions that are there stay read-only, and new ones are not."""
    role = make_role()
    role.alter("SET default_transaction_read_only = on")
    with psycopg_pool.ConnectionPool(role.dsn, min_size=1, max_size=1) as pool:
        pool.wait(LONG)
        role.alter("RESET default_transaction_read_only")
        with Leases(pool) as leases, leases.hold("moved", ttl=600) as lease, lease.transaction() as cursor:
            cursor.execute("SELECT 1")


def test_a_counted_hold_is_counted_down_after_a_longer_one_has_ended(server, slow):
    """At the server the lease lasts as long as the longest of its holds, even an ended one."""
    with Leases(server.dsn()) as leases:
        longer = leases.hold("again", ttl=3600, if_own="count")
        brief = leases.hold("again", ttl=1.5 * slow, if_own="count", renew=False)
        assert longer.release() is True
        assert brief.lost.wait(LONG)
        wait_until(lambda: not server.is_held("again"))


def test_all_late_copies_of_a_request_are_released(server, proxy, monkeypatch):
    """Two have no answer, and come to the server when the lease that the third one was granted is released."""
    for module in (_core, _keeper):
        monkeypatch.setattr(module, "LOOK_AFTER", LONG)
    with Leases(server.dsn(proxy.port)) as leases:
        proxy.on("lease_request", lambda: (proxy.cut(), proxy.on("lease_request", "cut")))
        lease = leases.hold("copies", ttl=3600, wait=LONG)
        assert proxy.seen == 2 and lease.release()
        for _ in range(2):
            assert server.value("SELECT granted FROM lease_request('copies', '1 hour', %s, if_own => 'renew')", lease.owner)
            wait_until(lambda: not server.is_held("copies"))


def test_500_leases_with_one_connection(server, slow):
    ttl = 9 * slow
    with Leases(server.dsn(application_name="crowd")) as leases:
        held = [leases.hold(f"crowd:{n}", ttl=ttl) for n in range(500)]
        keeper, statements = leases._core.keeper, []
        ask = keeper._ask
        keeper._ask = lambda *args: (statements.append(args), ask(*args))[1]
        time.sleep(7 * slow)
        assert statements and not any(lease.lost.is_set() for lease in held)
        assert len(server.held("crowd:%")) == 500
        # Those that are renewed together are at least a twelfth of the ttl wide: some ten statements, more if one fails.
        assert len(statements) < 100
        assert server.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'crowd'") == 2
    assert server.held("crowd:%") == []


@pytest.mark.parametrize("until", ["lost", "renewed"])
def test_an_error_of_the_system_keeps_nothing_from_being_told_or_renewed(server, slow, until):
    """No file descriptor is left for a renewal."""
    fails = threading.Event()

    def connect():
        if fails.is_set():
            raise OSError(24, "Too many open files")
        return psycopg.connect(server.dsn(application_name="system"))

    told = []
    with Leases(connect) as leases:
        lease = leases.hold("system", ttl=(2 if until == "lost" else 9) * slow, on_lost=told.append)
        fails.set()
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'system'")
        if until == "lost":
            wait_until(lambda: told == [lease])
        else:
            time.sleep(4 * slow)
            fails.clear()
            server.wait_for_renewal("system")


def test_a_silent_name_server_holds_up_nothing(server, slow, monkeypatch):
    """libpq gets addresses only: what looks names up, and waits, is a thread that can be abandoned."""
    get_addresses, silent = socket.getaddrinfo, threading.Event()
    asked = []

    def ask(*args):
        asked.append(args)
        if len(asked) > 1:
            silent.wait(LONG)
        return get_addresses(*args)

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    known = []
    connect = psycopg.connect
    monkeypatch.setattr(_source.psycopg, "connect", lambda **params: (known.append(params["hostaddr"]), connect(**params))[1])
    with Leases(server.dsn(application_name="names", host="localhost")) as leases:
        lease = leases.hold("names", ttl=6 * slow)
        server.wait_for_renewal("names")
        assert len(asked) == 1
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'names'")
        assert lease.lost.wait(LONG)
        with pytest.raises(psycopg.OperationalError, match="in time"):
            leases.hold("other")
        silent.set()
    assert all(ipaddress.ip_address(address) for address in known)


def test_a_name_that_is_not_found_ends_neither_elect_nor_a_transaction(server, slow, monkeypatch):
    get_addresses, fails, told = socket.getaddrinfo, threading.Event(), []

    def ask(*args):
        if fails.is_set():
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return get_addresses(*args)

    def look(record):
        for text in ("could not be elected", "failed to begin"):
            if text in record.msg:
                told.append(text)
                fails.clear()
        return True

    def run(lease):
        fails.set()
        with lease.transaction() as cursor:
            return cursor.execute("SELECT 1").fetchone()

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    logger = logging.getLogger("lease_lock")
    logger.addFilter(look)
    try:
        fails.set()
        with Leases(server.dsn(host="localhost")) as leases:
            assert leases.elect("named", run, ttl=3 * slow) == (1,)
    finally:
        logger.removeFilter(look)
    assert told[0] == "could not be elected" and told[-1] == "failed to begin"


@pytest.fixture
def two_addresses(monkeypatch):
    """A name that has them: where the first one leads is the test's to say."""
    get_addresses = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, *more: [
        one for address in ("127.0.0.2", "127.0.0.1") for one in get_addresses(address, *more)])


def test_a_name_whose_first_address_is_silent(server, two_addresses, monkeypatch):
    """And one that leads to a primary and its standbys must not stop at a standby."""
    known, connect = [], psycopg.connect
    monkeypatch.setattr(_source.psycopg, "connect", lambda **params: (known.append(params), connect(**params))[1])
    with socket.create_server(("127.0.0.2", server.port)), Leases(server.dsn(host="cluster")) as leases:
        leases.hold("address", wait=LONG).release()
    assert [params["hostaddr"] for params in known[:2]] == ["127.0.0.2", "127.0.0.1"]
    assert all(params["target_session_attrs"] in ("primary", "read-write") for params in known)


def test_what_a_server_said_is_not_hidden_by_an_address_that_refuses(server, two_addresses, monkeypatch):
    monkeypatch.setattr(_source, "addresses", lambda host, known=_source.addresses: known(host)[::-1])
    with Leases(server.dsn(host="cluster", dbname="nowhere")) as leases, pytest.raises(psycopg.errors.InvalidCatalogName):
        leases.hold("address", wait=LONG)


@pytest.mark.parametrize("states, raised", [
    (("28000", "57P03"), "57P03"), (("57P03", "28000"), "57P03"), (("3D000", "28000"), "3D000"), (("28000", None), "28000"),
    ((None, None), None)])
def test_a_server_that_refuses_for_good_hides_none_that_starts(monkeypatch, states, raised):
    given = iter(states)

    def connect(params, until):
        state = next(given)
        raise psycopg.OperationalError("refused") if state is None else psycopg.errors.lookup(state)("said")

    monkeypatch.setattr(_source, "connect_to", connect)
    with pytest.raises(psycopg.Error) as error:
        _source.connect_by("host=127.0.0.1,127.0.0.2", now() + LONG)
    assert error.value.sqlstate == raised and next(given, None) is None


def test_a_thread_that_is_abandoned_connects_to_no_other_address(monkeypatch):
    asked = []

    def fails(what):
        asked.append(what)
        raise psycopg.OperationalError("refused")

    monkeypatch.setattr(_source, "connect_to", lambda params, until: fails(params["hostaddr"]))
    monkeypatch.setattr(_source, "addresses", lambda host: [{"hostaddr": f"127.0.0.{n}"} for n in (1, 2)])
    with pytest.raises(psycopg.OperationalError, match="refused"):
        _source.connect_by("host=one,other", now())
    monkeypatch.setattr(_source, "addresses", lambda host: fails(host["host"]))
    with pytest.raises(psycopg.OperationalError, match="refused"):
        _source.connect_by("host=one,other", now())
    assert asked == ["127.0.0.1", "one"]


def test_an_address_that_is_silent_is_tried_once(monkeypatch):
    monkeypatch.setattr(_source, "explained", lambda *args: pytest.fail("it was asked again"))
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(psycopg.errors.ConnectionTimeout):
        _source.connect_by(f"host=127.0.0.1 port={silent.getsockname()[1]}", now() + 1)


def test_why_a_socket_cannot_be_reached():
    with pytest.raises(psycopg.OperationalError, match="No such file"):
        _source.connect_by("host=/nonexistent", now() + LONG)


def test_close_ends_a_transaction_that_connects(server):
    hangs, asked, goes_on = threading.Event(), threading.Event(), threading.Event()

    def connect():
        if hangs.is_set():
            asked.set()
            goes_on.wait()
        return psycopg.connect(server.dsn())

    def transact():
        with lease.transaction():
            pass

    leases = Leases(connect)
    lease = leases.hold("closed", ttl=3600)
    hangs.set()
    with ThreadPoolExecutor(1) as threads:
        transaction = threads.submit(transact)
        assert asked.wait(LONG)
        leases.close()
        try:
            with pytest.raises(LeaseLost) as lost:
                transaction.result(LONG)
        finally:
            goes_on.set()
    assert lost.value.reason == "closed"
    with pytest.raises(Closed), leases._connection(None, now() + LONG):
        pass


def test_a_connection_of_a_function_has_keepalives(server):
    made = []

    def connect():
        made.append(psycopg.connect(server.dsn(keepalives_idle=77)))
        return made[-1]

    with Leases(connect) as leases, leases.hold("alive", ttl=600):
        with _source.duplicate(made[0]) as sock:
            found = [sock.getsockopt(socket.IPPROTO_TCP, option) for option in (
                socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)]
            assert found == [77, 2, 3, 10_000] and sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_a_wait_for_lost_that_is_interrupted_holds_up_nobody(server):
    """Wherever an exception of a signal handler may be raised."""
    class Interrupted(BaseException):
        pass

    def interrupted(event, steps):
        def step(frame, what, arg):
            nonlocal steps
            steps -= 1
            if steps < 0:
                sys.settrace(None)
                raise Interrupted
            return step

        sys.settrace(step)
        try:
            event.wait(0.001)
        except Interrupted:
            return True
        finally:
            sys.settrace(None)
        return False

    with Leases(server.dsn()) as leases, leases.hold("event", ttl=600) as lease:
        for steps in itertools.count():
            lost = type(lease.lost)()
            was_interrupted = interrupted(lost, steps)
            for work in (lost.set, lost.wait):
                thread = threading.Thread(target=work, daemon=True)
                thread.start()
                thread.join(LONG)
                assert not thread.is_alive(), f"interrupted at step {steps}"
            if not was_interrupted:
                break
    assert steps > 5 and lost.wait(0) and not type(lost)().wait(-1)


def test_idle_connections_that_went_silent(server, proxy):
    """A try must not use up the whole limit on one of them, nor on one after another."""
    with Leases(server.dsn(proxy.port)) as leases, leases.hold("kept", ttl=3600), ThreadPoolExecutor(1) as threads:
        first_asks, second_has = threading.Event(), threading.Event()
        proxy.on("lease_request", lambda: (first_asks.set(), second_has.wait(LONG)))
        first = threads.submit(leases.hold, "first", ttl=3600, wait=LONG)
        assert first_asks.wait(LONG)
        second = leases.hold("second", ttl=3600, wait=LONG)
        second_has.set()
        assert first.result(LONG).release() and second.release() and len(leases._core._idle) == 2
        proxy.muted.update(proxy.sockets[1:])
        with leases.hold("reached", ttl=3600):
            pass


def answers_late(proxy, monkeypatch):
    """The next request comes to the server when more than a brief try may take is over."""
    monkeypatch.setattr(_core, "TRY", 0.2)
    proxy.seen = 0
    proxy.on("lease_request", lambda: (proxy.on("lease_request", lambda: None), time.sleep(0.6)))


def leave_idle(leases):
    """The first connection is used for renewals, the second one is idle."""
    kept = leases.hold("kept", ttl=3600)
    leases.hold("other", ttl=3600).release()
    kept.release()
    assert len(leases._core._idle) == 1


@pytest.mark.parametrize("options", [{}, {"wait": LONG}, {"owner": "ann"}, {"if_own": "count"}])
def test_a_request_that_is_answered_late_is_granted(server, proxy, monkeypatch, options):
    """One request is enough on a new connection, and wherever it cannot be repeated."""
    with Leases(server.dsn(proxy.port)) as leases:
        answers_late(proxy, monkeypatch)
        with leases.hold("late", ttl=3600, **options):
            assert proxy.seen == 1
        if "owner" in options or "if_own" in options:
            leave_idle(leases)
            answers_late(proxy, monkeypatch)
            with leases.hold("late", ttl=3600, **options):
                assert proxy.seen == 1


@pytest.mark.parametrize("ended", ["here", "by the server"])
def test_a_brief_try_ends_at_the_server_too(server, proxy, monkeypatch, ended):
    """It must not grant the lease when nobody looks after it any longer. The try after it has more time."""
    timeouts, statement = [], _request.Attempt.statement

    def look(*args):
        text, params = statement(*args)
        timeouts.append(int(text.split("statement_timeout = ")[1].split(";")[0]))
        if ended == "by the server" and len(timeouts) == 1:
            text = text.replace(f"statement_timeout = {timeouts[0]}", "statement_timeout = 1")
            text = text.replace("SELECT granted", f"SELECT pg_sleep({LONG});\nSELECT granted")
        return text, params

    with Leases(server.dsn(proxy.port)) as leases:
        leave_idle(leases)
        monkeypatch.setattr(_request.Attempt, "statement", look)
        if ended == "here":
            answers_late(proxy, monkeypatch)
        leases.hold("brief", ttl=3600).release()
    assert len(timeouts) == 2 and timeouts[0] <= 1000 * _core.TRY < timeouts[1]


def test_a_schema_that_is_forgotten_meanwhile(server):
    class Forgets(_source.Source):
        """After each look at it, another thread forgets it."""

        @property
        def _schema(self):
            known, self.known = self.known, None
            return known

        @_schema.setter
        def _schema(self, schema):
            self.known = schema

    source = Forgets(server.dsn(), None, None)
    with source.connect(now() + LONG) as connection:
        source._schema = source.schema(connection)
        assert source.schema(connection)


def test_a_call_after_close_is_not_closed_at_exit():
    leases = Leases("host=127.0.0.1 port=1")
    leases.close()
    with pytest.raises(Closed):
        leases.hold("late")
    assert leases._core not in _core._running


def test_at_exit_one_that_cannot_be_closed_keeps_no_other_from_it(server, monkeypatch):
    class Fails:
        def close(self, outcome, timeout):
            raise RuntimeError("can't create new thread at interpreter shutdown")

    leases = Leases(server.dsn())
    lease = leases.hold("other exit", ttl=3600)
    monkeypatch.setattr(_core, "_running", {leases._core, *(Fails() for _ in range(20))})
    _core._exit()
    assert lease.lost.is_set() and not server.is_held("other exit")


def test_events_are_told_in_order(server, slow):
    told = []
    with Leases(server.dsn(), on_event=lambda *event: told.append(event)) as leases:
        with leases.hold("told", ttl=2 * slow):
            wait_until(lambda: ("renewed", "told") in told)
            leases.try_hold("told")
    assert told[0] == ("granted", "told") and ("lost", "told") not in told


def test_elect_ends_with_an_error_of_its_function(server):
    with Leases(server.dsn()) as leases:
        for error in (LeaseTaken("other", "held", None, None), LeaseLost("other", "broken"), psycopg.OperationalError("mine")):
            def run(lease):
                raise error

            with pytest.raises(type(error)) as raised:
                leases.elect("leader", run)
            assert raised.value is error and not server.is_held("leader")


def test_it_works_under_eventlet(server):
    pytest.importorskip("eventlet")
    done = run("""
import eventlet
eventlet.monkey_patch()
import sys, threading, time
from lease_lock import Leases
order = []
with Leases(sys.argv[1]) as leases:
    def work(n):
        with leases.hold("green", ttl=30, wait=30) as lease:
            with lease.transaction() as cursor:
                cursor.execute("SELECT 1")
            time.sleep(0.1)
            order.append(n)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print(sorted(order))
""", server.dsn())
    assert done.returncode == 0 and done.stdout.strip() == "[0, 1, 2]", done.stderr
