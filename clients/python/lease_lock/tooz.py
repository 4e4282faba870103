"""Driver for tooz: tooz.coordination.get_coordinator("postgresql-lease://user@host:5432/app?ttl=30", b"member").

It has locks, exclusive and shared. Groups and their leaders it does not have: elect() of Leases elects one.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, NoReturn, Optional, Union
from urllib.parse import parse_qsl, quote, urlencode

import psycopg
import tooz
from tooz import coordination, locking, utils

from ._errors import NOT_AGAIN, LeaseError, LeaseTaken, sort
from ._loop import now
from ._request import PATIENCE
from ._source import execute
from ._sync import Lease, Leases


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        kind = tooz.ToozError if sort(error, True) == NOT_AGAIN else coordination.ToozConnectionError
        utils.raise_with_cause(kind, str(error), cause=error)
    except LeaseError as error:
        utils.raise_with_cause(tooz.ToozError, str(error), cause=error)


def resource_of(name: Union[bytes, str]) -> str:
    """Two names are two resources: what is not text is escaped, and what escapes is doubled."""
    if isinstance(name, bytes):
        name = name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    else:
        name = name.replace("\\", "\\\\")
    return name.replace("\0", "\\x00")


def as_libpq(options: dict[str, Any], query: str) -> dict[str, Any]:
    """A plus sign in the URL is one for libpq; tooz has taken it for a space."""
    by_tooz, by_libpq = dict(parse_qsl(query)), dict(parse_qsl(query.replace("+", "%2B")))
    return {name: by_libpq[name] if value == by_tooz.get(name) else value for name, value in options.items()}


class LeaseLock(locking.Lock):      # type: ignore[misc]
    """Renewed in the background until it is released. `lease.lost` is set before anybody else can have it."""

    def __init__(self, name: Union[bytes, str], leases: Leases, ttl: float) -> None:
        super().__init__(name)
        self._leases = leases
        self._ttl = ttl
        self._resource = resource_of(name)
        # One, or several that are shared. The last one is released first.
        self._held: list[Lease] = []

    @property
    def lease(self) -> Optional[Lease]:
        held = self._held[-1:]
        return held[0] if held else None

    @property
    def acquired(self) -> bool:
        return bool(self._held)

    def acquire(self, blocking: Union[bool, float] = True, shared: bool = False) -> bool:
        blocks, timeout = utils.convert_blocking(blocking)
        with translated():
            try:
                self._held.append(self._leases.hold(
                    self._resource, self._ttl, timeout if blocks else 0, mode="shared" if shared else "exclusive"))
            except LeaseTaken:
                return False
        return True

    def release(self) -> bool:
        try:
            lease = self._held.pop()
        except IndexError:
            return False
        with translated():
            return lease.release()

    def break_(self) -> bool:
        """Needs the privilege to call lease_break(). Fails after 5 seconds, if a transaction relies on the lease."""
        with translated(), self._leases._connection(None, now() + PATIENCE) as connection:
            schema = self._leases._source.schema(connection)
            rows = execute(connection, f"SET LOCAL statement_timeout = {int(1000 * PATIENCE)}; SELECT {schema}.lease_break(%s)",
                           [self._resource])
        return bool(rows[0][0])

    def is_still_owner(self) -> bool:
        lease = self.lease
        return lease is not None and lease.remaining() > 0

    def heartbeat(self) -> bool:
        """Nothing to do: renewal does not depend on the caller."""
        return self.is_still_owner()


class LeaseDriver(coordination.CoordinationDriver):     # type: ignore[misc]
    """The URL is one of libpq, with another scheme, and two more parameters: `ttl`, the time of a lease in seconds
    (`timeout`, as other drivers of tooz call it, if there is no ttl), and `schema`, where the functions of the portable
    edition are.
    """

    CHARACTERISTICS = (
        coordination.Characteristics.DISTRIBUTED_ACROSS_THREADS,
        coordination.Characteristics.DISTRIBUTED_ACROSS_PROCESSES,
        coordination.Characteristics.DISTRIBUTED_ACROSS_HOSTS,
    )

    def __init__(self, member_id: bytes, parsed_url: Any, options: dict[str, Any]) -> None:
        super().__init__(member_id, parsed_url, options)
        options = as_libpq(utils.collapse(options), parsed_url.query)
        self._ttl = float(options.pop("ttl", options.pop("timeout", 30)))
        self._schema = options.pop("schema", None)
        # urlunsplit() would leave out the slashes before no host.
        self._url = f"postgresql://{parsed_url.netloc}{parsed_url.path}?{urlencode(options, quote_via=quote)}"
        self._leases: Optional[Leases] = None

    def _start(self) -> None:
        leases = Leases(self._url, schema=self._schema)
        try:
            with translated(), leases._connection(None, now() + PATIENCE):
                pass
        except BaseException:
            leases.close(0)
            raise
        self._leases = leases

    def _stop(self) -> None:
        if self._leases is not None:
            self._leases.close()

    def get_lock(self, name: Union[bytes, str]) -> LeaseLock:
        if self._leases is None:
            raise tooz.ToozError("start the coordinator first")
        return LeaseLock(name, self._leases, self._ttl)

    def _no_groups(self, *_: Any) -> NoReturn:
        raise tooz.NotImplemented

    watch_join_group = watch_leave_group = watch_elected_as_leader = _no_groups
    unwatch_join_group = unwatch_leave_group = unwatch_elected_as_leader = _no_groups
