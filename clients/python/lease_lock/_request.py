"""What is sent to the server, and what comes back: the same with threads and with asyncio.

Each statement goes to the server in one message, parameters included. So it can begin with a SET LOCAL, which ends with
the statement, and it works behind a pooler that gives each transaction another connection.
"""

from __future__ import annotations

import json
import math
import os
import socket
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Optional, Union

import psycopg

Seconds = Union[float, timedelta]

# Longest time to wait for the server where neither a wait nor the end of a lease sets a limit.
PATIENCE = 5.0

# SQLSTATE of an assertion that fails.
NOT_HELD = "55000"

REQUEST = """\
SET LOCAL statement_timeout = {timeout};
SELECT granted, token, extract(epoch FROM waited)::float8, reason, blocked_by, extract(epoch FROM blocked_for)::float8
FROM lease_request(%(resource)s::text, make_interval(secs => %(ttl)s::float8), %(owner)s::text,
    wait => make_interval(secs => %(wait)s::float8), mode => %(mode)s::text, permits => %(permits)s::integer,
    if_own => %(if_own)s::text, min_hold => make_interval(secs => %(min_hold)s::float8),
    lock_delay => make_interval(secs => %(lock_delay)s::float8), payload => %(payload)s::jsonb)"""

RENEW = """\
SET LOCAL statement_timeout = {timeout};
SET LOCAL lock_timeout = {lock_timeout};
SELECT l.n, lease_renew(l.resource, make_interval(secs => l.ttl), l.owner, l.token)
FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::float8[]) WITH ORDINALITY AS l(resource, owner, token, ttl, n)"""

RELEASE = """\
SET LOCAL statement_timeout = {timeout};
SELECT l.n, lease_release(l.resource, l.owner, l.token)
FROM unnest(%s::text[], %s::text[], %s::bigint[]) WITH ORDINALITY AS l(resource, owner, token, n)"""

# For a request whose answer was lost: the token is not known.
RELEASE_UNKNOWN = "SET LOCAL statement_timeout = {timeout}; SELECT lease_release(%s::text, %s::text)"

ASSERT = "SELECT lease_assert(%s::text, %s::text), set_config('lease_lock.owner', %s, true)"


class LeaseTaken(Exception):
    """Somebody else has the lease. `reason`, `blocked_by` and `blocked_for` (seconds) are those of lease_request."""

    def __init__(self, resource: str, reason: str, blocked_by: Optional[str], blocked_for: Optional[float]) -> None:
        super().__init__(f'lease on "{resource}" is taken ({reason}' + (f" by {blocked_by})" if blocked_by else ")"))
        self.resource = resource
        self.reason = reason
        self.blocked_by = blocked_by
        self.blocked_for = blocked_for


class LeaseLost(Exception):
    """The lease is not held any longer, or will not be in a moment."""

    def __init__(self, resource: str, reason: str) -> None:
        super().__init__(f'lease on "{resource}" is lost: {reason}')
        self.resource = resource
        self.reason = reason


class Closed(Exception):
    """close() was called."""


class Grant(NamedTuple):
    granted: bool
    token: int
    waited: float
    reason: str
    blocked_by: Optional[str]
    blocked_for: Optional[float]


def seconds(time: Optional[Seconds]) -> Optional[float]:
    if isinstance(time, timedelta):
        return time.total_seconds()
    if time is not None and (isinstance(time, bool) or not isinstance(time, (int, float)) or not math.isfinite(time)):
        raise TypeError(f"a time must be seconds or a timedelta, not {time!r}")
    return time


def new_owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4()}"


def milliseconds(time: float) -> int:
    return min(max(1, math.ceil(time * 1000)), 2**31 - 1)


@dataclass
class Request:
    """One hold() or try_hold()."""

    resource: str
    ttl: float
    wait: Optional[float]
    owner: str
    mode: str
    if_own: str
    options: dict[str, Any]
    # Nobody else uses the owner, so the request can be repeated.
    own_owner: bool

    def statement(self, left: Optional[float], repeated: bool) -> tuple[str, dict[str, Any]]:
        timeout = 0 if left is None else milliseconds(left + PATIENCE)
        return REQUEST.format(timeout=timeout), {
            "resource": self.resource, "ttl": self.ttl, "owner": self.owner, "wait": left, "mode": self.mode,
            "if_own": "renew" if repeated else self.if_own, **self.options}

    def taken(self, grant: Grant) -> LeaseTaken:
        return LeaseTaken(self.resource, grant.reason, grant.blocked_by, grant.blocked_for)


def make_request(shared_owner: str, resource: str, ttl: Seconds, wait: Optional[Seconds], *, mode: str = "exclusive",
                 permits: Optional[int] = None, min_hold: Optional[Seconds] = None,
                 lock_delay: Optional[Seconds] = None, payload: Any = None, if_own: str = "refuse",
                 owner: Optional[str] = None) -> Request:
    """Each lease has an owner of its own, except those that are counted: they know each other by the owner."""
    time = seconds(ttl)
    if time is None or time <= 0:
        raise ValueError(f"ttl must be more than zero, not {ttl!r}")
    return Request(
        resource, time, seconds(wait), owner or (shared_owner if if_own == "count" else new_owner()), mode, if_own,
        {"permits": permits, "min_hold": seconds(min_hold), "lock_delay": seconds(lock_delay),
         "payload": None if payload is None else json.dumps(payload)},
        own_owner=owner is None and if_own != "count")


def lost_connection(error: BaseException) -> bool:
    """Whether the same call may succeed on another connection: this one broke, or its server is not the primary."""
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate
    if state is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return state == "25006" or state[:2] == "08" or state[:3] == "57P"
