"""Leases with the connection parameters of a Django database, and transactions by Django's own connection.

    from lease_lock.django import atomic, leases

    with leases().hold("invoice:17") as lease:
        with atomic(lease):
            invoice.save()
"""

from __future__ import annotations

import functools
import os
import threading
from contextlib import contextmanager
from typing import AbstractSet, Any, Iterator, Optional, Union

import psycopg
from django.db import Error, connections, transaction
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from ._errors import BROKEN, NOT_HELD, LeaseLost
from ._loop import now
from ._request import ASSERT, PATIENCE
from ._source import connect_by
from ._sync import Lease, Leases

_leases: dict[tuple[str, str, Optional[str]], DjangoLeases] = {}
_lock = threading.Lock()


def _in_child() -> None:
    """A thread that is not there may have it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


class DjangoLeases(Leases):
    """In an atomic block, the end of a lease is not waited for: this thread's own assertion may keep it from ending."""

    def __init__(self, connection: Any, schema: Optional[str]) -> None:
        settings = connection.copy()        # not as they will be for another test run
        role = settings.settings_dict.get("OPTIONS", {}).get("assume_role")
        super().__init__(functools.partial(_connect, settings, role), schema=schema)
        self._using = connection.alias

    def _hands_over(self) -> bool:
        return bool(connections[self._using].in_atomic_block)


def leases(using: str = "default", schema: Optional[str] = None) -> DjangoLeases:
    """The Leases of this process for a database as it is set now: a test run has another one than production."""
    connection = connections[using]
    key = (using, _conninfo(connection, {"password"}), schema)      # which may be another one for each connection
    with _lock:
        found = _leases.get(key)
        if found is None or found._core.closed:
            found = _leases[key] = DjangoLeases(connection, schema)
        _close_before_it_is_dropped(connection)
        return found


def close() -> None:
    """Close all of them. leases() makes new ones."""
    with _lock:
        closing = list(_leases.values())
        _leases.clear()
    for found in closing:   # which waits for the server, and threads that call leases() must not
        found.close()


def _conninfo(connection: Any, without: AbstractSet[str] = frozenset()) -> str:
    """What Django would connect with, OPTIONS included, as far as it is libpq's."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()} - without
    params = dict(connection.get_connection_params())
    params.setdefault("dbname", params.pop("database", None))
    return make_conninfo(**{key: value for key, value in params.items() if key in known and value is not None})


def _connect(settings: Any, role: Optional[str]) -> Union[str, psycopg.Connection[Any]]:
    """With what its backend gives now: a password may be over soon."""
    if role is None:
        return _conninfo(settings)
    connection = connect_by(_conninfo(settings), now() + PATIENCE)
    connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    return connection


def _close_before_it_is_dropped(connection: Any) -> None:
    """At the end of a test run, nobody else may be connected to its database."""
    creation = connection.creation
    if not hasattr(creation, "_lease_lock"):
        creation._lease_lock, drop = True, creation.destroy_test_db

        def destroy_test_db(*args: Any, **kwargs: Any) -> Any:
            close()
            return drop(*args, **kwargs)
        creation.destroy_test_db = destroy_test_db


@contextmanager
def atomic(lease: Lease, using: str = "default", **options: Any) -> Iterator[None]:
    """transaction.atomic() that asserts the lease first, and rolls back if the lease is lost meanwhile."""
    lease.check()
    with transaction.atomic(using, **options):
        with connections[using].cursor() as cursor:
            try:
                cursor.execute(ASSERT.format(schema=lease._record.schema), [lease.resource, lease.owner, lease.owner])
                token = cursor.fetchone()[0]
            except Error as error:
                if _sqlstate(error) == NOT_HELD:
                    raise _lost(lease) from error
                raise
        if token != lease.token:
            raise _lost(lease)
        yield
        lease.check()


def _lost(lease: Lease) -> LeaseLost:
    lease._core.lose(lease._record, BROKEN)
    lease.lost.set()
    return lease._record.loss()


def _sqlstate(error: Error) -> Any:
    """Of psycopg 3 or psycopg2."""
    return getattr(error.__cause__, "sqlstate", None) or getattr(error.__cause__, "pgcode", None)
