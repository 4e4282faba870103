"""The same leases by the interfaces of other libraries."""

import _thread
import itertools
import os
import signal
import threading
import time
import types

import pytest

from conftest import CLIENTS
from lease_lock import LeaseLost, Leases
from servers import LONG, wait_until


@pytest.fixture
def coordinator(server, slow):
    """As tooz finds it by the entry point, which the test of the package looks at."""
    pytest.importorskip("tooz")
    from oslo_utils import netutils
    from urllib.parse import parse_qs

    from lease_lock.tooz import LeaseDriver

    url = netutils.urlsplit(f"postgresql-lease://postgres@127.0.0.1:{server.port}/postgres"
                            f"?ttl={4 * slow}&application_name=tooz")
    driver = LeaseDriver(b"member", url, parse_qs(url.query))
    driver.start()
    yield driver
    driver.stop()


def test_tooz_lock(server, slow, coordinator):
    import tooz

    lock, other = coordinator.get_lock(b"printer"), coordinator.get_lock(b"printer")
    with lock:
        assert lock.acquired and lock.is_still_owner() and server.is_held("printer")
        assert not other.acquire(blocking=False) and not other.acquire(blocking=0.1) and not lock.acquire(blocking=False)
        time.sleep(5 * slow)
        assert lock.is_still_owner()        # longer than the ttl
        threading.Timer(0.5, lock.release).start()
        assert other.acquire()
    assert not lock.acquired and not lock.release() and other.release() and not server.is_held("printer")
    with lock(shared=True), other(shared=True):
        assert not coordinator.get_lock(b"printer").acquire(blocking=False)
    assert lock.acquire()
    server.sql("SELECT lease_break('printer')")
    assert lock.lease.lost.wait(LONG) and not lock.is_still_owner() and not lock.release()
    with pytest.raises(tooz.coordination.LockAcquireFailed):
        with other, lock(blocking=False):
            pass


def test_tooz_releases_when_it_stops(server, coordinator):
    lock = coordinator.get_lock(b"stop")     # a lock that nobody refers to is released
    assert lock.acquire() and server.is_held("stop")
    coordinator.stop()
    assert not server.is_held("stop")
    coordinator.start()


def test_tooz_names_errors_and_locks_that_are_shared_or_broken(server, coordinator):
    import tooz
    from oslo_utils import netutils
    from tooz.coordination import ToozConnectionError

    from lease_lock.tooz import LeaseDriver

    shared = coordinator.get_lock(b"shared")
    assert shared.acquire(shared=True) and shared.acquire(shared=True)      # the second one hung
    assert shared.release() and shared.release() and not shared.release()
    one, other = coordinator.get_lock(b"\\xff"), coordinator.get_lock(b"\xff")
    assert one.acquire(blocking=False) and other.acquire(blocking=False)
    assert coordinator.get_lock(b"\xff").break_() and not other.release() and one.release()
    assert one.acquire() and other.acquire()
    with one.lease.transaction(), pytest.raises(ToozConnectionError):
        coordinator.get_lock(b"\\xff").break_()         # a holder that hangs must not hang it, too
    with pytest.raises(tooz.NotImplemented):
        coordinator.watch_join_group(b"group", print)
    with pytest.raises(ToozConnectionError):
        LeaseDriver(b"member", netutils.urlsplit("postgresql-lease://127.0.0.1:1/none"), {}).start()


def test_tooz_leaves_no_thread_if_it_cannot_start():
    pytest.importorskip("tooz")
    from oslo_utils import netutils
    from tooz.coordination import ToozConnectionError

    from lease_lock.tooz import LeaseDriver

    before = _thread._count()
    for _ in range(10):     # more than those of other tests that may end meanwhile
        with pytest.raises(ToozConnectionError):
            LeaseDriver(b"member", netutils.urlsplit("postgresql-lease://127.0.0.1:1/none"), {}).start()
    wait_until(lambda: _thread._count() <= before)


def test_tooz_without_a_host_in_the_url(server):
    """As for a server on a socket."""
    pytest.importorskip("tooz")
    from oslo_utils import netutils
    from urllib.parse import parse_qs

    from lease_lock.tooz import LeaseDriver

    url = netutils.urlsplit(f"postgresql-lease:///postgres?host=127.0.0.1&port={server.port}&user=postgres"
                            "&application_name=the%20driver+1&timeout=300")     # as other drivers of tooz call the ttl
    driver = LeaseDriver(b"member", url, parse_qs(url.query))
    driver.start()
    assert driver.get_lock(b"timed").acquire() and 30 < server.time_left("timed") <= 300
    assert server.value("SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'the driver+1'")
    driver.stop()


def connect_of(leases):
    return leases._source._make.__closure__[0].cell_contents


def test_django(server, slow, monkeypatch):
    django = pytest.importorskip("django")
    from django.conf import settings

    database = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres", "HOST": "127.0.0.1",
                "PORT": str(server.port), "ATOMIC_REQUESTS": True}
    urls = types.ModuleType("urls")
    settings.configure(DATABASES={"default": database}, ROOT_URLCONF=urls, ALLOWED_HOSTS=["testserver"])
    django.setup()
    from django.db import connection, connections, transaction
    from django.http import HttpResponse
    from django.test import Client
    from django.urls import path

    from lease_lock.django import _lock, atomic, close, leases

    with _lock:
        child = os.fork()
        if child == 0:
            signal.alarm(LONG)
            close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    server.sql("CREATE TABLE paper (id int PRIMARY KEY); SELECT lease_protect('paper', 'paper:{id}')")
    try:
        with leases().hold("paper:1", ttl=600) as lease:
            with atomic(lease), connection.cursor() as cursor:
                cursor.execute("INSERT INTO paper VALUES (1)")
            with pytest.raises(ZeroDivisionError):
                with atomic(lease), connection.cursor() as cursor:
                    cursor.execute("DELETE FROM paper")
                    1 / 0
            with pytest.raises(django.db.Error), transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("DELETE FROM paper")     # no lease is asserted
        with pytest.raises(LeaseLost):
            with leases().hold("paper:1", ttl=600) as lease:
                server.sql("SELECT lease_break('paper:1')")
                with atomic(lease):
                    pytest.fail("the lease is not held")
                assert lease.lost.is_set()
        with pytest.raises(LeaseLost), transaction.atomic():
            with leases().hold("paper:1", ttl=2 * slow) as lease:
                server.sql("SELECT lease_break('paper:1')")
                assert lease.lost.wait(LONG)
        assert server.sql("SELECT id FROM paper") == [(1,)]
        # With ATOMIC_REQUESTS the transaction's own assertion keeps the lease from ending before the response.
        def view(request):
            with leases().hold("paper:1", ttl=20 * LONG) as lease, atomic(lease), connection.cursor() as cursor:
                cursor.execute("UPDATE paper SET id = 1")
            assert connection.in_atomic_block and server.is_held("paper:1")
            return HttpResponse("filed")

        urls.urlpatterns = [path("paper", view)]
        assert Client().get("/paper").content == b"filed"
        wait_until(lambda: not server.is_held("paper:1"))
        # A test run has another database, and drops it in the end.
        first = leases()
        server.sql("CREATE DATABASE test_paper TEMPLATE template0")
        settings.DATABASES["default"]["NAME"] = connection.settings_dict["NAME"] = "test_paper"
        assert leases() is not first and "test_paper" in connect_of(leases())()
        connection.settings_dict["NAME"] = "postgres"
        assert leases() is first
        # A password that is over soon, as clouds give: a new one for each connection.
        kind, passwords = type(connections["default"]), itertools.count()
        params = kind.get_connection_params
        with monkeypatch.context() as patch:
            patch.setattr(kind, "get_connection_params", lambda self: {**params(self), "password": str(next(passwords))})
            assert leases() is first and connect_of(first)() != connect_of(first)()
        first.close()
        leases().hold("paper:1").release()

        # While they are closed, which may take its time, another thread has new ones.
        other = threading.Thread(target=leases)

        def slow():
            other.start()
            other.join(LONG)
            assert not other.is_alive()
        leases().close, closing = slow, leases().close
        close()
        closing()
        close()
    finally:
        connection.close()
        server.sql("DROP DATABASE IF EXISTS test_paper WITH (FORCE)")
        server.sql("DROP TABLE paper")


def test_sqlalchemy_recipe(server):
    """The recipe of README.md."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    recipe = (CLIENTS / "python/README.md").read_text().split("```python\n# SQLAlchemy")[1].split("```")[0]
    scope = {}
    exec("#" + recipe, scope)
    engine = sqlalchemy.create_engine(f"postgresql+psycopg2://postgres@127.0.0.1:{server.port}/postgres")
    server.sql("CREATE TABLE leaf (id int PRIMARY KEY); SELECT lease_protect('leaf', 'leaf:{id}')")
    try:
        with Leases(server.dsn()) as leases:
            with leases.hold("leaf:1", ttl=600) as lease:
                with scope["begin"](engine, lease) as connection:
                    connection.execute(sqlalchemy.text("INSERT INTO leaf VALUES (1)"))
            with pytest.raises(LeaseLost):
                with leases.hold("leaf:1", ttl=600) as lease:
                    server.sql("SELECT lease_break('leaf:1')")
                    with scope["begin"](engine, lease):
                        pytest.fail("the lease is not held")
        assert server.sql("SELECT id FROM leaf") == [(1,)]
    finally:
        engine.dispose()
        server.sql("DROP TABLE leaf")
