"""Servers for the tests: PostgreSQL on 127.0.0.1, PgBouncer in transaction mode, and a proxy that can be silent.

The programs of the server are those of $PG_CONFIG, whose installation has the extension.
"""

import fcntl
import os
import pathlib
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import psycopg
import pytest

CLIENTS = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(CLIENTS / "python"))

# Only so that a test that hangs ends: no test depends on speed.
LONG = int(os.environ.get("PG_TEST_TIMEOUT_DEFAULT", "180"))

reserved = []       # sockets, until the process ends


def free_port():
    """While this socket is bound, the port is given to nobody who asks for any, but a server may listen on this one."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)      # as the server does
    sock.bind(("127.0.0.1", 0))
    reserved.append(sock)
    return sock.getsockname()[1]


def wait_until(condition, limit=LONG):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class Server:
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

    def standby(self, name):
        other = Server(self.folder, name)
        self.run("pg_basebackup", "-D", other.data, "-R", "-c", "fast", "-h", "127.0.0.1", "-p", self.port,
                 "-U", "postgres")
        return other.start()

    def kill(self):
        """All processes at once, as when the machine fails."""
        self.control("stop", "-m", "immediate")

    def dsn(self, port=None, **more):
        return " ".join([f"host=127.0.0.1 port={port or self.port} user=postgres dbname=postgres",
                         *(f"{key}={value}" for key, value in more.items())])

    def sql(self, statement, *params):
        """Over a connection that stays open: conditions are looked at fifty times a second."""
        try:
            cursor = self.connection.execute(statement, params or None)
        except (AttributeError, psycopg.OperationalError):
            self.connection = psycopg.connect(self.dsn(), autocommit=True)
            cursor = self.connection.execute(statement, params or None)
        return cursor.fetchall() if cursor.description else None


@pytest.fixture(scope="session")
def folder():
    path = pathlib.Path(tempfile.mkdtemp(prefix="leases", dir=os.environ.get("TMPDIR", "/tmp")))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def server(folder):
    server = Server(folder, "primary").init().start()
    try:
        server.sql("CREATE EXTENSION lease_lock")
        yield server
    finally:
        server.control("stop", "-m", "fast")


@pytest.fixture
def slow(server):
    """How many times slower than a quiet machine is this one now? So much longer is a ttl that steps must not outlast."""
    since = time.monotonic()
    for _ in range(10):
        psycopg.connect(server.dsn()).close()
    return min(8, 1 + int((time.monotonic() - since) / 0.5))


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
        f"unix_socket_dir =\nauth_type = trust\nauth_file = {folder}/users\nserver_login_retry = 0.2\n")
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


class Proxy:
    """Passes connections on to a port of 127.0.0.1. While `silent` is set, it swallows what comes from either side."""

    def __init__(self, port):
        self.to = port
        self.silent = threading.Event()
        self.delay = 0      # of answers, in seconds
        self.lose_answer_to = None      # a word of a request: its connection ends before the answer gets back
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets = [self.listener]
        self.lost = set()       # sockets of clients that hear nothing more
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            self.sockets.append(client)
            if self.silent.is_set():
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                client.close()
                continue
            self.sockets.append(server)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(source, target, source is client), daemon=True).start()

    def pump(self, source, target, is_request):
        try:
            while data := source.recv(65536):
                if self.silent.is_set():
                    continue
                if not is_request:
                    time.sleep(self.delay)
                elif self.lose_answer_to and self.lose_answer_to in data:
                    self.lose_answer_to = None
                    self.lost.add(source)       # before the server can answer
                if target in self.lost:
                    break
                target.sendall(data)
                if source in self.lost:
                    break
        except OSError:
            pass
        if not self.silent.is_set():
            for sock in (source, target):
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self):
        for sock in self.sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()


@pytest.fixture
def make_proxy(server):
    made = []

    def make(port=None):
        made.append(Proxy(port or server.port))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()


@pytest.fixture
def proxy(make_proxy):
    return make_proxy()


class Holder:
    """A process that holds leases until its standard input is closed. It prints what happens to them."""

    def __init__(self, command, dsn, ttl, resources, env, folder=None):
        self.process = subprocess.Popen(
            [*command, dsn, str(ttl), *resources], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(CLIENTS / "python"), **env})
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        self.tokens = {resource: self.next("held", resource) for resource in resources}

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.split())

    def next(self, *words):
        """The next thing that happens is this; returns the word that follows."""
        line = self.lines.get(timeout=LONG)
        assert line[:len(words)] == list(words), line
        return line[-1]

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(LONG) == 0

    def clean_up(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        # What libfaketime leaves when its process is killed.
        for name in ("faketime_shm", "sem.faketime_sem"):
            pathlib.Path(f"/dev/shm/{name}_{self.process.pid}").unlink(missing_ok=True)
        self.reader.join()
        self.process.stdin.close()
        self.process.stdout.close()


HOLDERS = {
    "python": [sys.executable, CLIENTS / "python/tests/holder.py"],
    "asyncio": [sys.executable, CLIENTS / "python/tests/holder_async.py"],
    "node": ["node", "test/holder.js"],
}


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory):
    """Where the package for Node.js is installed."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent      # once for all workers
    with open(base / "node.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder, installed = base / "node", base / "node.installed"
        if not installed.exists() and shutil.which("node"):
            folder.mkdir()
            subprocess.run([CLIENTS / "node/test/install", folder], check=False)
            installed.touch()
    if not (folder / "node_modules/pg").exists():
        pytest.skip("no Node.js, or no pg for it")
    return folder


@pytest.fixture(params=HOLDERS)
def start_holder(request):
    """Start a process that holds leases, in each language."""
    holders = []
    folder = request.getfixturevalue("node_folder") if request.param == "node" else None

    def start(dsn, ttl, *resources, **env):
        holders.append(Holder(HOLDERS[request.param], dsn, ttl, resources, env, folder))
        return holders[-1]

    yield start
    for holder in holders:
        holder.clean_up()


@pytest.fixture(autouse=True)
def clean(request):
    """Each test begins without leases."""
    if "server" in request.fixturenames:
        request.getfixturevalue("server").sql("SELECT lease_break(resource) FROM lease_status")
