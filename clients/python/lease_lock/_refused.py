"""Why a server refused a connection. psycopg raises the same error for a wrong password and for a server that is full.

libpq shows the SQLSTATE in messages that are verbose. It must be told before it connects, for which psycopg has no call.
So the connection is tried once more, with the functions of libpq. Where they are not found, the reason is not known.
"""

from __future__ import annotations

import ctypes
import re
import selectors
import sys
from typing import Any

from psycopg import Error, errors, pq

from ._loop import now

VERBOSE = 2
EVENTS: dict[int, int] = {pq.PollingStatus.READING: selectors.EVENT_READ, pq.PollingStatus.WRITING: selectors.EVENT_WRITE}


def explained(error: Exception, conninfo: str, until: float) -> Exception:
    """The error that has the server's SQLSTATE, if there is one."""
    try:
        found = re.findall(r":  ([0-9A-Z]{5}): ", _message(conninfo, until))
        return errors.lookup(found[-1])(str(error)) if found else error
    except (AttributeError, KeyError, OSError, ValueError, Error):
        return error


def _message(conninfo: str, until: float) -> str:
    pgconn = pq.PGconn.connect_start(conninfo.encode())
    try:
        _libpq().PQsetErrorVerbosity(ctypes.c_void_p(getattr(pgconn, "pgconn_ptr")), VERBOSE)
        status: int = pq.PollingStatus.WRITING
        while status in EVENTS and now() < until:
            with selectors.DefaultSelector() as selector:
                selector.register(pgconn.socket, EVENTS[status])
                selector.select(max(0.0, until - now()))
            status = pgconn.connect_poll()
        return pgconn.error_message.decode(errors="replace")
    finally:
        pgconn.finish()


def _libpq() -> Any:
    """The library that psycopg uses: of several, the others must not touch its connections."""
    module = sys.modules[pq.PGconn.__module__]
    return ctypes.CDLL(module.__file__ if pq.__impl__ != "python" else "libpq.so.5")
