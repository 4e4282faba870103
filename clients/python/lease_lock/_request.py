"""What is sent to the server, and what comes back: the same with threads and with asyncio.

Each statement goes to the server in one message, parameters included. So it can begin with settings that end with it,
and it works behind a pooler that gives each transaction another connection. The settings make it independent of those
of the role: names, timeouts, and whether a warning is sent. Times come back as whole milliseconds.
"""

from __future__ import annotations

import json
import math
import os
import socket
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from ._errors import LeaseTaken
from ._loop import now

if TYPE_CHECKING:
    from typing_extensions import TypedDict

    class Options(TypedDict, total=False):
        mode: str
        permits: Optional[int]
        min_hold: Optional[Seconds]
        payload: Any
        if_own: str
        owner: Optional[str]
        stop_before: Optional[Seconds]
        renew: bool

Seconds = Union[float, timedelta]

# Longest time to wait for the server where neither a wait nor the end of a lease sets a limit.
PATIENCE = 5.0

# How long before its end a holder must have stopped, as a part of the ttl.
MARGIN = 1 / 6

SETTINGS = """\
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL client_min_messages = warning;
SET LOCAL statement_timeout = {timeout};
SET LOCAL lock_timeout = {lock_timeout};
{more}"""

# A wait in the portable edition, and one for a transaction, does not notice otherwise that its client has gone.
CHECK_CLIENT = """\
SELECT set_config('client_connection_check_interval', '1s', true) WHERE strpos(version(), 'linux') > 0;
"""

REQUEST = """\
SELECT granted, token, floor(extract(epoch FROM waited) * 1000)::int8, reason, blocked_by,
    floor(extract(epoch FROM blocked_for) * 1000)::int8
FROM {schema}.lease_request(%(resource)s::text, make_interval(secs => %(ttl)s::float8), %(owner)s::text,
    wait => make_interval(secs => %(wait)s::float8), mode => %(mode)s::text, permits => %(permits)s::int4,
    if_own => %(if_own)s::text, min_hold => make_interval(secs => %(min_hold)s::float8),
    payload => %(payload)s::jsonb)"""

# The last column: does another owner hold it now?
RENEW = """\
SELECT r.n, r.held, {schema}.lease_contended(r.resource), CASE WHEN r.held THEN false ELSE EXISTS (
    SELECT FROM {schema}.lease_status AS s
    WHERE s.resource = r.resource AND s.state = 'held' AND s.token > r.token) END
FROM (
    SELECT l.*, {schema}.lease_renew(l.resource, make_interval(secs => l.ttl), l.owner, l.token) AS held
    FROM unnest(%s::text[], %s::text[], %s::int8[], %s::float8[]) WITH ORDINALITY AS l(resource, owner, token, ttl, n)
    OFFSET 0) AS r"""

# Without a token: a request whose answer was lost.
RELEASE = """\
SELECT l.n, CASE WHEN l.token IS NULL THEN {schema}.lease_release(l.resource, l.owner)
    ELSE {schema}.lease_release(l.resource, l.owner, l.token) END
FROM unnest(%s::text[], %s::text[], %s::int8[]) WITH ORDINALITY AS l(resource, owner, token, n)"""

# The lease is not kept for its min_hold. NULL: that cannot be said now, since an open transaction is in the way, say.
# If the lease ends meanwhile, the request is granted anew, and that is released.
GIVE_BACK = """\
SELECT 1, CASE WHEN l.held = coalesce(l.token, l.held) THEN (
    SELECT CASE WHEN g.granted AND (g.reason IS NULL OR g.token = l.held)
        THEN {schema}.lease_release(l.resource, l.owner, g.token) AND g.token = l.held
        WHEN g.reason NOT IN ('open', 'failover') THEN false END
    FROM {schema}.lease_request(l.resource, make_interval(secs => %s::float8), l.owner, mode => %s::text, permits => %s::int4,
        if_own => 'renew', min_hold => '0') AS g) ELSE false END
FROM (SELECT l.*, {schema}.lease_token(l.resource, l.owner) AS held
    FROM unnest(%s::text[], %s::text[], %s::int8[]) AS l(resource, owner, token) OFFSET 0) AS l"""

# In a transaction of the user's, whose settings stay as they are, but for one that would hide the warning of a COMMIT
# whose wait for a synchronous standby is cancelled.
ASSERT = """\
SELECT {schema}.lease_assert(%s, %s), pg_catalog.set_config('lease_lock.owner', %s, true),
    CASE WHEN pg_catalog.current_setting('client_min_messages') OPERATOR(pg_catalog.=) 'error'
        THEN pg_catalog.set_config('client_min_messages', 'warning', true) END"""


def settings(version: int, timeout: float, lock_timeout: float = 0) -> str:
    return SETTINGS.format(timeout=milliseconds(timeout), lock_timeout=milliseconds(lock_timeout),
                           more="SET LOCAL transaction_timeout = 0;\n" if version >= 170000 else "")


class Grant(NamedTuple):
    granted: bool
    token: int
    waited: int
    reason: str
    blocked_by: Optional[str]
    blocked_for: Optional[int]


def seconds(time: Optional[Seconds]) -> Optional[float]:
    if isinstance(time, timedelta):
        return time.total_seconds()
    if time is not None and (isinstance(time, bool) or not isinstance(time, (int, float)) or not math.isfinite(time)):
        raise TypeError(f"a time must be seconds or a timedelta, not {time!r}")
    return time


def new_owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4()}"


def milliseconds(time: float) -> int:
    """0, which means no limit, only for 0 and infinity."""
    return 0 if time in (0, math.inf) else min(max(1, math.ceil(time * 1000)), 2**31 - 1)


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
    stop_before: float
    renew: bool
    # Where the functions are: known when it was sent.
    schema: str = ""

    @property
    def keeps(self) -> bool:
        """Whether its release may leave the lease kept for its min_hold. A hold of several does not."""
        return self.options["min_hold"] is not None and self.if_own != "count"

    def taken(self, grant: Grant, asked: float) -> LeaseTaken:
        left = None if grant.blocked_for is None else max(0.0, grant.blocked_for / 1000 - (now() - asked))
        return LeaseTaken(self.resource, grant.reason, grant.blocked_by, left)


class Attempt:
    """A request, to be sent once. `until`: when the wait at the server ends; it is over already for a try.

    `end`: when it is cut off here. The server must not carry it out later: nobody would look after the lease.
    """

    def __init__(self, request: Request, until: float, end: float, repeated: bool) -> None:
        self._request, self._until, self._end, self._repeated = request, until, end, repeated

    def statement(self, schema: str, version: int) -> tuple[str, Any]:
        request = self._request
        request.schema = schema
        left = None if self._until == math.inf else max(0.0, self._until - now())
        text = settings(version, max(0.001, self._end - now()))
        text += ("" if left == 0 else CHECK_CLIENT) + REQUEST.format(schema=schema)
        return text, {
            "resource": request.resource, "ttl": request.ttl, "owner": request.owner, "wait": left,
            "mode": request.mode, "if_own": "renew" if self._repeated else request.if_own, **request.options}


def make_request(shared_owner: str, resource: str, ttl: Seconds, wait: Optional[Seconds], *, mode: str = "exclusive",
                 permits: Optional[int] = None, min_hold: Optional[Seconds] = None, payload: Any = None,
                 if_own: str = "refuse", owner: Optional[str] = None, stop_before: Optional[Seconds] = None,
                 renew: bool = True) -> Request:
    """Each lease has an owner of its own, except those that are counted: they know each other by the owner."""
    time, before = seconds(ttl), seconds(stop_before)
    if time is None or time <= 0:
        raise ValueError(f"ttl must be more than zero, not {ttl!r}")
    if (seconds(wait) or 0) < 0:
        raise ValueError(f"wait must not be negative, but {wait!r} is")
    if before is not None and not 0 <= before < time:
        raise ValueError(f"stop_before must be less than the ttl, not {stop_before!r}")
    return Request(
        resource, time, seconds(wait), owner or (shared_owner if if_own == "count" else new_owner()), mode, if_own,
        {"permits": permits, "min_hold": seconds(min_hold), "payload": None if payload is None else json.dumps(payload)},
        own_owner=owner is None and if_own != "count", stop_before=time * MARGIN if before is None else before,
        renew=renew)
