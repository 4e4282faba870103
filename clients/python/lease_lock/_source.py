"""Where connections come from: a connection string, a function of the user's, or a pool; and where the functions are.

libpq resolves its parameters, environment and service files. It is asked for the result before it connects, so that
each host can have its share of the time, and that what the user did not set gets a default. Names are looked up here
and not by libpq, since psycopg may keep all other threads waiting meanwhile. All of that may hang, so connect() is
called in threads that can be abandoned.
"""

from __future__ import annotations

import os
import socket
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from ._errors import NOT_AGAIN, sort
from ._loop import now
from ._refused import explained

Connection = psycopg.Connection[Any]

# What a connection gets unless its parameters say otherwise. A server that is gone is noticed within seconds.
DEFAULTS = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}

# What the socket calls them. Not every system has all of them.
OF_SOCKETS = {"keepalives_idle": "TCP_KEEPIDLE", "keepalives_interval": "TCP_KEEPINTVL", "keepalives_count": "TCP_KEEPCNT",
              "tcp_user_timeout": "TCP_USER_TIMEOUT"}

# Parameters of psycopg's connections that are not libpq's. The statements must not depend on those of a pool.
OF_CURSORS = {"row_factory", "cursor_factory", "context", "autocommit", "prepare_threshold"}

FIND = """\
SET LOCAL search_path = pg_catalog, pg_temp;
SELECT n.nspname, e.oid IS NOT NULL
FROM (SELECT %s::text AS name) AS given
CROSS JOIN pg_namespace AS n LEFT JOIN pg_extension AS e ON e.extnamespace = n.oid AND e.extname = 'lease_lock'
WHERE e.oid IS NOT NULL OR n.nspname = given.name"""

_own: weakref.WeakSet[Any] = weakref.WeakSet()


@contextmanager
def errors_of_the_system() -> Iterator[None]:
    """They become those of a connection: a name that is not found, say, or no file descriptor."""
    try:
        yield
    except OSError as error:
        raise psycopg.OperationalError(str(error)) from error


class Source:
    def __init__(self, source: Any, connect: Any, schema: Optional[str]) -> None:
        self._make: Callable[[float], Connection]
        self.pool = None
        if connect is not None:
            self._take(connect)
            if not isinstance(source, str):
                self.pool = source
            elif source:
                raise ValueError("with connect=, the source is a pool or nothing")
        elif isinstance(source, str) or callable(source):
            self._take(source)
        else:
            self.pool = source
            _refuse_hooks(source)
            self._take(lambda: _string_of(source))
        self._given = schema
        self._schema: Optional[str] = None

    def _take(self, source: Any) -> None:
        """A string, or a function that returns a connection or a string."""
        def make(until: float) -> Connection:
            made = source() if callable(source) else source
            return connect_by(made, until) if isinstance(made, str) else with_defaults(made)
        self._make = make

    @errors_of_the_system()
    def connect(self, until: float) -> Connection:
        connection = self._make(until)
        _own.add(connection)
        if not connection.autocommit:
            connection.autocommit = True
        return connection

    def schema(self, connection: Connection) -> str:
        """Where the functions are: quoted, for a statement with parameters."""
        schema = self._schema       # another thread may forget it
        if schema is None:
            found = execute(connection, FIND, [self._given])
            self._schema = schema = self._choose(found, connection.info.dbname)
        return schema

    def _choose(self, found: list[tuple[Any, ...]], database: str) -> str:
        extension = [row for row in found if row[1]]
        if extension and self._given is not None:
            raise ValueError(f'schema="{self._given}" is given, but database "{database}" has the extension lease_lock')
        if not found:
            what = f'schema "{self._given}"' if self._given else "extension lease_lock"
            raise psycopg.errors.UndefinedFunction(f'database "{database}" does not have the {what}')
        name = str((extension or found)[0][0])
        return '"' + name.replace('"', '""').replace("%", "%%") + '"'

    def forget_schema(self) -> None:
        """The extension may have moved."""
        self._schema = None


def _refuse_hooks(pool: Any) -> None:
    """What its hooks do to its connections would not be done to those that renew."""
    if getattr(pool, "_configure", None) is not None:
        raise ValueError("the pool has configure=: pass connect=, a function that returns a connection set up in the "
                         "same way, since leases are acquired and renewed on connections of their own")


def _string_of(pool: Any) -> str:
    conninfo = pool.conninfo() if callable(pool.conninfo) else pool.conninfo
    kwargs = pool.kwargs() if callable(pool.kwargs) else pool.kwargs
    return make_conninfo(conninfo, **without_those_of_cursors(kwargs or {}))


def without_those_of_cursors(params: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in params.items() if key not in OF_CURSORS}


def connect_by(conninfo: str, until: float) -> Connection:
    """One address after another, each with its share of the time: one that is silent must not use up all of it."""
    given = conninfo_to_dict(conninfo)
    known = resolved(conninfo)
    params = {**{key: value for key, value in DEFAULTS.items() if not known.get(key)}, **given,
              "fallback_application_name": "lease_lock", "autocommit": True, "prepare_threshold": None}
    hosts = hosts_of(known)
    failures: list[psycopg.Error] = []
    for host, end_of_host in shares(hosts, until):
        if failures and now() >= until:
            break       # nobody waits for this thread any longer
        try:
            found = addresses(host)
        except psycopg.Error as error:
            failures.append(error)
            continue
        if len(hosts) * len(found) > 1 and known.get("target_session_attrs", "any") == "any":
            params["target_session_attrs"] = "primary" if pq.version() >= 140000 else "read-write"
        for address, end in shares(found, end_of_host):
            if failures and now() >= until:
                break
            share = max(1, int(end - now()))
            params["connect_timeout"] = min(share, int(known.get("connect_timeout") or 0) or share)
            try:
                return connect_to({**params, **address}, end)
            except psycopg.Error as error:
                failures.append(error)
    raise cause_of(failures)


def cause_of(failures: list[psycopg.Error]) -> psycopg.Error:
    """What a server said must not be hidden by an address that cannot be reached, nor by a server that refuses for good."""
    said = [failure for failure in failures if failure.sqlstate is not None]
    passing = [failure for failure in said if sort(failure, False) != NOT_AGAIN]
    return (passing or said or failures[-1:])[0]


def connect_to(params: dict[str, Any], until: float) -> Connection:
    try:
        connection: Connection = psycopg.connect(**params)
        return connection
    except psycopg.OperationalError as error:
        if error.sqlstate is not None or isinstance(error, psycopg.errors.ConnectionTimeout):
            raise       # one that was silent would be so once more
        raise explained(error, make_conninfo(**without_those_of_cursors(params)), until) from None


def shares(places: list[dict[str, str]], until: float) -> Iterator[tuple[dict[str, str], float]]:
    """Each with the end of its share of the time that is left."""
    for n, place in enumerate(places):
        yield place, now() + (until - now()) / (len(places) - n)


def resolved(conninfo: str) -> dict[str, str]:
    """All parameters as libpq knows them. The invalid one keeps it from connecting."""
    pgconn = pq.PGconn.connect_start(make_conninfo(conninfo, channel_binding="only resolve").encode())
    try:
        return {option.keyword.decode(): option.val.decode() for option in pgconn.info if option.val}
    finally:
        pgconn.finish()


def hosts_of(known: dict[str, str]) -> list[dict[str, str]]:
    lists = {key: known[key].split(",") for key in ("host", "hostaddr", "port") if key in known}
    count = max((len(lists[key]) for key in ("host", "hostaddr") if key in lists), default=1)
    return [{key: values[n if len(values) > 1 else 0] for key, values in lists.items()} for n in range(count)]


@errors_of_the_system()
def addresses(host: dict[str, str]) -> list[dict[str, str]]:
    name = host.get("host", "")
    if not name or name[0] in "/@" or host.get("hostaddr"):
        return [host]
    # In this order, without keywords: eventlet has a getaddrinfo of its own.
    found = dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM))
    return [{**host, "hostaddr": address} for address in found]


def with_defaults(connection: Connection) -> Connection:
    """One of the user's function, which may not have asked for keepalives."""
    given = {option.keyword.decode() for option in connection.pgconn.info if option.val}
    with duplicate(connection) as sock:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            for name in OF_SOCKETS.keys() - given:
                if hasattr(socket, OF_SOCKETS[name]):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, OF_SOCKETS[name]), DEFAULTS[name])
    return connection


def is_quiet(connection: Any) -> bool:
    """Whether an idle connection can be used. The server may have closed it: a message first, then the end."""
    if connection.closed:
        return False
    try:
        for _ in range(2):
            connection.pgconn.consume_input()
    except psycopg.Error:
        return False
    return not connection.closed


@errors_of_the_system()
def execute(connection: Connection, statement: str, params: Any) -> list[tuple[Any, ...]]:
    """Statements in a transaction of their own, in one message; rows of the last one."""
    cursor = psycopg.ClientCursor(connection, row_factory=tuple_row)
    cursor.execute(statement, params)
    while cursor.nextset():
        pass
    return cursor.fetchall()


@contextmanager
def cancelled_waits(connection: Any) -> Iterator[list[str]]:
    """Of what is written now, a synchronous standby may not know: the warnings that say so."""
    told: list[str] = []

    def note(notice: psycopg.errors.Diagnostic) -> None:
        if notice.source_function == "SyncRepWaitForLSN":
            told.append(str(notice.message_primary))
    connection.add_notice_handler(note)
    try:
        yield told
    finally:
        connection.remove_notice_handler(note)


@errors_of_the_system()
def duplicate(connection: Any) -> socket.socket:
    """The socket, which can be shut down even when another thread closes the connection."""
    return socket.socket(fileno=os.dup(connection.fileno()))


def cut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass    # the other side was faster


def _in_child() -> None:
    """The connections belong to the parent: whatever this process does to them must not reach the server."""
    null = os.open(os.devnull, os.O_RDWR)
    for connection in list(_own):
        if not connection.closed:
            os.dup2(null, connection.fileno())
    os.close(null)
    _own.clear()


os.register_at_fork(after_in_child=_in_child)
