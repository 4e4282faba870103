"""Connections of the package's own: short timeouts, several hosts, and a child process that leaves them alone."""

from __future__ import annotations

import os
import select
import socket
import weakref
from concurrent.futures import Future, TimeoutError as TooLate
from threading import Thread
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

# What a connection gets unless its parameters say otherwise. A server that is gone is noticed within seconds.
DEFAULTS = {
    "fallback_application_name": "lease_lock",
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

_own: weakref.WeakSet[Any] = weakref.WeakSet()


def hosts(conninfo: str, kwargs: dict[str, Any], timeout: float) -> list[dict[str, Any]]:
    """Parameters for each host of the connection string, to be tried in turn. The timeout is for all together.

    One call for all would spend its whole time on a first host that is silent.
    """
    params: dict[str, Any] = {**DEFAULTS, **conninfo_to_dict(conninfo), **kwargs, "autocommit": True, "prepare_threshold": None}
    lists = {key: str(params[key]).split(",") for key in ("host", "hostaddr", "port") if params.get(key) is not None}
    count = max((len(values) for values in lists.values()), default=1)
    params["connect_timeout"] = max(1, int(timeout / count))
    return [{**params, **{key: values[n if len(values) > 1 else 0] for key, values in lists.items()}}
            for n in range(count)]


def look_up(host: str, timeout: float) -> list[str]:
    found: Future[list[str]] = Future()

    def run() -> None:
        try:
            found.set_result(list(dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))))
        except OSError as error:
            found.set_exception(psycopg.OperationalError(f'no address of host "{host}": {error}'))

    Thread(target=run, name="lease_lock name", daemon=True).start()
    try:
        return found.result(timeout)
    except TooLate:
        raise psycopg.OperationalError(f'no address of host "{host}" in time') from None


def with_address(params: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Add the addresses of the host, so that libpq need not ask for them.

    A silent name server would make libpq wait, with no limit, and psycopg may keep all other threads waiting meanwhile.
    """
    host = str(params.get("host") or os.environ.get("PGHOST", ""))
    if not host or host[0] in "/@" or "," in host or params.get("hostaddr") or os.environ.get("PGHOSTADDR"):
        return params
    addresses = look_up(host, timeout)
    return {**params, "host": ",".join(host for _ in addresses), "hostaddr": ",".join(addresses)}


def connect(conninfo: str, kwargs: dict[str, Any], timeout: float) -> psycopg.Connection[Any]:
    """kwargs are those of a pool, perhaps of an asynchronous one."""
    plain = {key: value for key, value in kwargs.items() if key not in ("row_factory", "cursor_factory", "context")}
    failure: Exception = psycopg.OperationalError("no host to connect to")
    for params in hosts(conninfo, plain, timeout):
        try:
            connection = psycopg.connect(**with_address(params, params["connect_timeout"]))
        except psycopg.OperationalError as error:
            failure = error
        else:
            adopt(connection)
            return connection
    raise failure


def adopt(connection: Any) -> None:
    _own.add(connection)


def is_quiet(connection: Any) -> bool:
    """Whether an idle connection can be used. What arrives on one says that the server closes it."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def execute(connection: psycopg.Connection[Any], statement: str, params: Any) -> list[tuple[Any, ...]]:
    """Run a statement of _request.py in a transaction of its own; rows of its last part."""
    autocommit = connection.autocommit
    if not autocommit:
        connection.autocommit = True
    try:
        cursor = psycopg.ClientCursor(connection, row_factory=tuple_row)
        cursor.execute(statement, params)
        while cursor.nextset():
            pass
        return cursor.fetchall()
    finally:
        if not autocommit and not connection.closed:
            connection.autocommit = False


def _in_child() -> None:
    """The connections belong to the parent: whatever this process does to them must not reach the server."""
    null = os.open(os.devnull, os.O_RDWR)
    for connection in list(_own):
        if not connection.closed:
            os.dup2(null, connection.fileno())
    os.close(null)
    _own.clear()


os.register_at_fork(after_in_child=_in_child)
