"""Servers for the tests: PostgreSQL on 127.0.0.1, PgBouncer in transaction mode, and a proxy that misbehaves.

The programs of the server are those of $PG_CONFIG, whose installation has the extension.
"""

import contextlib
import copy
import math
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time

import psycopg
import pytest

CLIENTS = pathlib.Path(__file__).resolve().parents[1]

# Only so that a test that hangs ends: no test depends on speed.
LONG = int(os.environ.get("PG_TEST_TIMEOUT_DEFAULT", "180"))

edition = "extension"       # or "portable": pytest --edition

reserved = []       # sockets, until the process ends


def free_port():
    """While this socket is bound, the port is given to nobody who asks for any, but a server may listen on this one."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)      # as the server does
    sock.bind(("127.0.0.1", 0))
    reserved.append(sock)
    return sock.getsockname()[1]


def wait_until(condition, limit=LONG):
    """What it is then. Look often at first. Most of the tests wait, side by side: what looks for long must not take their time."""
    end, pause = time.monotonic() + limit, 0.01
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(pause)
        pause = min(1.2 * pause, 0.1)
    return value


class Server:
    database = "postgres"

    def __init__(self, folder, name):
        self.bin = pathlib.Path(subprocess.check_output(
            [os.environ.get("PG_CONFIG", "pg_config"), "--bindir"], text=True).strip())
        self.folder, self.data, self.port = folder, folder / name, free_port()
        self.connection = None

    def run(self, program, *args):
        log = self.folder / "programs.log"
        with open(log, "a") as output:
            done = subprocess.run([self.bin / program, *map(str, args)], stdout=output, stderr=output, check=False)
        assert done.returncode == 0, log.read_text()[-3000:]

    def init(self):
        self.run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-N", "--encoding=UTF8", "--no-locale")
        hba = self.data / "pg_hba.conf"
        hba.write_text("host all locked 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write("listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nfsync = off\n"
                       "shared_preload_libraries = 'lease_lock'\nwal_level = replica\nmax_connections = 300\n"
                       "dynamic_shared_memory_type = mmap\n")      # nothing in /dev/shm when it is killed
        return self

    def control(self, *args):
        self.run("pg_ctl", "-D", self.data, "-l", f"{self.data}.log", "-o", f"-p {self.port}", "-w", "-t", LONG, *args)
        return self

    def start(self):
        return self.control("start")

    def install(self):
        """The extension, or the portable edition in its schema. Both are found without it by the tests' own statements."""
        if edition == "extension":
            self.sql("CREATE EXTENSION lease_lock")
            return
        file = (CLIENTS.parent / "portable/lease_lock.sql").read_text()
        self.sql(f"BEGIN; CREATE SCHEMA lease; SET LOCAL search_path = lease; SET LOCAL client_min_messages = warning; {file}; COMMIT")
        self.sql("GRANT USAGE ON SCHEMA lease TO PUBLIC")
        self.sql("ALTER DATABASE postgres SET search_path = public, lease")
        self.connection.close()

    def standby(self, name):
        other = Server(self.folder, name)
        self.run("pg_basebackup", "-D", other.data, "-R", "-c", "fast", "-h", "127.0.0.1", "-p", self.port,
                 "-U", "postgres")
        return other.start()

    def kill(self):
        """All processes at once, as when the machine fails."""
        self.control("stop", "-m", "immediate")

    def dsn(self, port=None, **more):
        params = {"host": "127.0.0.1", "port": port or self.port, "user": "postgres", "dbname": self.database, **more}
        return " ".join(f"{key}='{value}'" for key, value in params.items())

    def sql(self, statement, *params):
        """Over a connection that stays open: conditions are looked at many times a second."""
        try:
            cursor = self.connection.execute(statement, params or None)
        except (AttributeError, psycopg.OperationalError):
            self.connection = psycopg.connect(self.dsn(), autocommit=True)
            cursor = self.connection.execute(statement, params or None)
        return cursor.fetchall() if cursor.description else None

    def value(self, statement, *params):
        rows = self.sql(statement, *params)
        return rows[0][0] if rows else None

    def in_database(self, name):
        """The same server, seen from another database."""
        other = copy.copy(self)
        other.database, other.connection = name, None
        return other

    # What the tests ask

    def is_held(self, resource):
        return self.value("SELECT count(*) FROM lease_status WHERE resource = %s AND state = 'held'", resource) == 1

    def held(self, pattern):
        return [row[0] for row in self.sql(
            "SELECT resource FROM lease_status WHERE resource LIKE %s AND state = 'held' ORDER BY 1", pattern)]

    def protect(self, table, template):
        """In the portable edition, the assertion of a transaction is all there is."""
        if edition == "extension":
            self.sql("SELECT lease_protect(%s, %s)", table, template)

    def waits(self, pattern):
        """Process and begin of each statement that waits for a lease."""
        if edition == "extension":
            return self.sql("SELECT pid, query_start FROM lease_waiters JOIN pg_stat_activity USING (pid) WHERE resource LIKE %s", pattern)
        # It sleeps or is in the line; now and then it looks. Its statement has the name.
        return self.sql("SELECT pid, query_start FROM pg_stat_activity WHERE query LIKE '%%lease_request%%' AND query LIKE %s "
                        "AND state = 'active' AND pid <> pg_backend_pid() "
                        "AND (wait_event IN ('PgSleep', 'advisory') OR query_start < clock_timestamp() - interval '1 s')", f"%{pattern}%")

    def waiters(self, pattern):
        return len(self.waits(pattern))

    def time_left(self, resource):
        return self.value("SELECT extract(epoch FROM expires_in)::float8 FROM lease_status WHERE resource = %s",
                          resource) or 0

    def wait_for_renewal(self, resource):
        """Watch the lease long enough to see it renewed."""
        before = self.time_left(resource)
        assert before > 0

        def renewed():
            nonlocal before
            left = self.time_left(resource)
            assert left > 0
            if left > before:
                return True
            before = left
            return False

        wait_until(renewed)


class Proxy:
    """Passes connections on to a port of 127.0.0.1, as long as nothing is set.

    `swallow` (directions "request", "answer"): what comes is dropped, and an end is not passed on.
    `mute_new`: the same for connections that begin from now on. `delay`: seconds for each direction. `drip`: directions in
    which a byte comes at a time.
    on(word, action): for the next request that has the word, in capitals or not: "cut" before it is passed on;
    "cut answer" or "swallow answer" after it was; or a function that is called before.
    """

    def __init__(self, port, at=0):
        self.to = port
        self.swallow, self.drip = set(), set()
        self.delay = {"request": 0, "answer": 0}
        self.mute_new = False
        self.trigger = None     # word, action
        self.gone, self.muted, self.swallowed = set(), set(), set()       # sockets of clients
        self.seen = 0
        self.listener = socket.create_server(("127.0.0.1", at))
        self.port = self.listener.getsockname()[1]
        self.sockets = [self.listener]
        threading.Thread(target=self.accept, daemon=True).start()

    def silence(self, on=True):
        self.swallow = {"request", "answer"} if on else set()

    def on(self, word, action):
        self.trigger = (word.lower().encode(), action)

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            self.sockets.append(client)
            if self.mute_new:
                self.muted.add(client)
            try:
                server = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                shut(client)
                continue
            self.sockets.append(server)
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.pump, args=(client, server, client, "request"), daemon=True).start()
            threading.Thread(target=self.pump, args=(server, client, client, "answer"), daemon=True).start()

    def pump(self, source, target, client, direction):
        try:
            while data := source.recv(65536):
                if direction in self.swallow or client in self.muted:
                    self.swallowed.add(client)
                    continue
                time.sleep(self.delay[direction])
                if direction == "request" and self.trigger and self.trigger[0] in data.lower():
                    action, self.trigger = self.trigger[1], None
                    self.seen += 1
                    if callable(action):
                        action()
                        target.sendall(data)
                        continue
                    if action == "cut":
                        break
                    (self.gone if action == "cut answer" else self.muted).add(client)   # before the server can answer
                    target.sendall(data)
                    continue
                if client in self.gone:
                    break
                self.send(target, data, direction)
        except OSError:
            pass
        if not self.swallow and client not in self.muted:
            shut(source)
            shut(target)

    def send(self, target, data, direction):
        if direction not in self.drip:
            target.sendall(data)
            return
        for n in range(len(data)):
            target.sendall(data[n:n + 1])
            time.sleep(0.2)

    def cut(self, sockets=None):
        for sock in sockets or self.sockets[1:]:
            shut(sock)

    def close(self):
        self.swallow = set()
        for sock in self.sockets:
            shut(sock)
            sock.close()


def shut(sock):
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


# Fixtures

@pytest.fixture(scope="session")
def folder():
    path = pathlib.Path(tempfile.mkdtemp(prefix="leases", dir=os.environ.get("TMPDIR", "/tmp")))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def server(folder):
    server = Server(folder, "primary").init().start()
    try:
        server.install()
        yield server
    finally:
        server.control("stop", "-m", "fast")


@pytest.fixture
def database(server):
    """A database of its own, with the extension."""
    server.sql("CREATE DATABASE own TEMPLATE template0")
    own = server.in_database("own")
    own.sql("CREATE EXTENSION lease_lock")
    yield own
    own.connection.close()
    server.sql("DROP DATABASE own WITH (FORCE)")


class Role:
    def __init__(self, server, name):
        self.server, self.name, self.dsn = server, name, server.dsn(user=name)

    def alter(self, what):
        self.server.sql(f"ALTER ROLE {self.name} {what}")

    def end_sessions(self):
        self.server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", self.name)


@pytest.fixture
def make_role(server):
    made = []

    def make(options="", name="app"):
        server.sql(f"CREATE ROLE {name} LOGIN {options}")
        made.append(Role(server, name))
        return made[-1]

    yield make
    server.sql("SELECT lease_break(resource) FROM lease_status")
    for role in made:
        role.end_sessions()
        server.sql(f"DROP ROLE {role.name}")


@pytest.fixture
def missing_standby(server):
    """Set while the test runs, and reset by it or in the end: commits wait for a standby that does not exist."""
    def set_standby(name):
        server.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        server.sql("SELECT pg_reload_conf()")
        wait_until(lambda: server.value("SHOW synchronous_standby_names") == name)
        if name:
            wait_until(commits_wait)

    def commits_wait():
        """Sessions know the setting before the checkpointer does, which lets commits wait."""
        warnings = []
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.add_notice_handler(lambda diagnostic: warnings.append(diagnostic.source_function))
            timer = threading.Timer(0.2, connection.cancel)
            timer.start()
            with contextlib.suppress(psycopg.errors.QueryCanceled):
                connection.execute("SELECT pg_logical_emit_message(true, '', '')")      # has something to commit
            timer.join()
        return "SyncRepWaitForLSN" in warnings
    yield set_standby
    set_standby("")
    server.sql("ALTER SYSTEM RESET synchronous_standby_names")


@pytest.fixture
def another(tmp_path):
    """A server that may be lost; with others that a test starts."""
    server = Server(tmp_path, "another").init().start()
    server.install()
    started = [server]
    yield started
    for server in started:
        server.control("stop", "-m", "immediate")


measured = {"at": -math.inf, "slow": 1}


@pytest.fixture
def slow(server):
    """How many times slower than a quiet machine is this one? So much longer is a ttl that steps must not outlast."""
    since = time.monotonic()
    if since > measured["at"] + 10:
        for _ in range(2):
            psycopg.connect(server.dsn()).close()
        measured["at"] = time.monotonic()
        measured["slow"] = min(8, 1 + int((measured["at"] - since) / 0.1))
    return measured["slow"]


@pytest.fixture(scope="session")
def pgbouncer(server, folder):
    program = shutil.which("pgbouncer", path=os.environ["PATH"] + ":/usr/sbin")
    if not program:
        pytest.skip("no pgbouncer")
    port = free_port()
    (folder / "users").write_text('"postgres" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={server.port}\n[pgbouncer]\npool_mode = transaction\n"
        f"default_pool_size = 10\nmax_client_conn = 200\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
        f"unix_socket_dir =\nauth_type = trust\nauth_file = {folder}/users\nserver_login_retry = 0.2\n"
        "ignore_startup_parameters = extra_float_digits\n")      # as the driver of Java needs it
    process = subprocess.Popen([program, "-q", folder / "pgbouncer.ini"], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        yield port
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(params=["direct", "pgbouncer"])
def dsn(request, server):
    """The same test directly and through PgBouncer."""
    return server.dsn(request.getfixturevalue("pgbouncer") if request.param == "pgbouncer" else None)


@pytest.fixture
def make_proxy(server):
    made = []

    def make(port=None, **more):
        made.append(Proxy(port or server.port, **more))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture
def proxy(make_proxy):
    return make_proxy()


@pytest.fixture(autouse=True)
def clean(request):
    """Each test begins without leases."""
    if "server" in request.fixturenames:
        request.getfixturevalue("server").sql("SELECT lease_break(resource) FROM lease_status")
