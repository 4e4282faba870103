"""Leases with the connection parameters of a Django database, and transactions by Django's own connection.

    from lease_lock.django import atomic, leases

    with leases().hold("invoice:17") as lease:
        with atomic(lease):
            invoice.save()
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any, Iterator

from django.db import Error, connections, transaction
from psycopg.conninfo import make_conninfo

from . import Lease, LeaseLost, Leases
from ._request import ASSERT, NOT_HELD

_leases: dict[str, Leases] = {}
_lock = threading.Lock()


def leases(using: str = "default") -> Leases:
    """The Leases of this process for a database of the settings."""
    with _lock:
        if using not in _leases:
            settings = connections[using].settings_dict
            names = {"NAME": "dbname", "HOST": "host", "PORT": "port", "USER": "user", "PASSWORD": "password"}
            params = {name: settings[key] for key, name in names.items() if settings.get(key)}
            libpq = {key: value for key, value in settings.get("OPTIONS", {}).items()
                     if key in ("service", "passfile", "target_session_attrs") or key.startswith("ssl")}
            _leases[using] = Leases(make_conninfo(**params, **libpq))
        return _leases[using]


@contextmanager
def atomic(lease: Lease, using: str = "default", **options: Any) -> Iterator[None]:
    """transaction.atomic() that asserts the lease first, and rolls back if the lease is lost meanwhile."""
    lease.check()
    with transaction.atomic(using, **options):
        with connections[using].cursor() as cursor:
            try:
                cursor.execute(ASSERT, [lease.resource, lease.owner, lease.owner])
                token = cursor.fetchone()[0]
            except Error as error:
                if _sqlstate(error) == NOT_HELD:
                    raise LeaseLost(lease.resource, "the server says so") from error
                raise
        if token != lease.token:
            raise LeaseLost(lease.resource, "the owner has a later lease")
        yield
        lease.check()


def _sqlstate(error: Error) -> Any:
    """Of psycopg 3 or psycopg2."""
    return getattr(error.__cause__, "sqlstate", None) or getattr(error.__cause__, "pgcode", None)
