"""Driver for tooz: tooz.coordination.get_coordinator("postgresql-lease://user@host:5432/app?ttl=30", b"member").

It has locks, exclusive and shared. Groups and their leaders it does not have: elect() of Leases elects one.
"""

from __future__ import annotations

import threading
from typing import Any, Optional, Union
from urllib.parse import urlencode, urlunsplit

import psycopg
import tooz
from tooz import coordination, locking, utils

from . import Closed, Lease, Leases, LeaseTaken


class LeaseLock(locking.Lock):
    """Renewed in the background until it is released. `lease.lost` is set before anybody else can have it."""

    def __init__(self, name: Union[bytes, str], leases: Leases, ttl: float) -> None:
        super().__init__(name)
        self._leases = leases
        self._ttl = ttl
        self._resource = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
        # One thread at a time acquires: the others wait here.
        self._turn = threading.Lock()
        self.lease: Optional[Lease] = None

    @property
    def acquired(self) -> bool:
        return self.lease is not None

    def acquire(self, blocking: Union[bool, float] = True, shared: bool = False) -> bool:
        blocking, timeout = utils.convert_blocking(blocking)
        if not self._turn.acquire(blocking, -1 if timeout is None or not blocking else timeout):
            return False
        try:
            self.lease = self._leases.hold(
                self._resource, self._ttl, timeout if blocking else 0, mode="shared" if shared else "exclusive")
        except LeaseTaken:
            pass
        except (psycopg.Error, Closed) as error:
            utils.raise_with_cause(tooz.ToozError, str(error), cause=error)
        finally:
            if self.lease is None:
                self._turn.release()
        return self.acquired

    def release(self) -> bool:
        lease, self.lease = self.lease, None
        if lease is None:
            return False
        try:
            return lease.release()
        finally:
            self._turn.release()

    def is_still_owner(self) -> bool:
        return self.lease is not None and self.lease.remaining() > 0

    def heartbeat(self) -> bool:
        """Nothing to do: renewal does not depend on the caller."""
        return self.is_still_owner()


class LeaseDriver(coordination.CoordinationDriver):
    """The URL is one of libpq, with another scheme. Its parameter `ttl` is the time of a lease, in seconds."""

    CHARACTERISTICS = (
        coordination.Characteristics.DISTRIBUTED_ACROSS_THREADS,
        coordination.Characteristics.DISTRIBUTED_ACROSS_PROCESSES,
        coordination.Characteristics.DISTRIBUTED_ACROSS_HOSTS,
    )

    def __init__(self, member_id: bytes, parsed_url: Any, options: dict[str, Any]) -> None:
        super().__init__(member_id, parsed_url, options)
        options = utils.collapse(options)
        self._ttl = float(options.pop("ttl", 30))
        self._url = urlunsplit(("postgresql", parsed_url.netloc, parsed_url.path, urlencode(options), ""))
        self._leases: Optional[Leases] = None

    def _start(self) -> None:
        self._leases = Leases(self._url)

    def _stop(self) -> None:
        if self._leases is not None:
            self._leases.close()

    def get_lock(self, name: Union[bytes, str]) -> LeaseLock:
        if self._leases is None:
            raise tooz.ToozError("start the coordinator first")
        return LeaseLock(name, self._leases, self._ttl)
