"""Errors, and what to do after one of the driver: errors.tsv, which all clients share, sorts them."""

from __future__ import annotations

import pathlib
from typing import Any, Optional

import psycopg

AGAIN, NOT_AGAIN, UNKNOWN = "again", "not again", "unknown"

EXPIRED, BROKEN, TAKEN_OVER, CLOSED, RELEASED = "expired", "broken", "taken_over", "closed", "released"

_TEXTS = {
    EXPIRED: "it was not renewed in time", BROKEN: "the server says that it is not held",
    TAKEN_OVER: "another owner has it", CLOSED: "leases were closed", RELEASED: "it was released"}

# SQLSTATE of an assertion that fails.
NOT_HELD = "55000"

# SQLSTATE of a server that may be a standby by now. Its name may lead to the primary: only a new connection finds that.
READ_ONLY = "25006"

# SQLSTATEs if the functions are not where they were.
MOVED = ("42883", "3F000")

_table = dict(
    line.split("\t")[:2] for line in (pathlib.Path(__file__).parent / "errors.tsv").read_text("utf-8").splitlines()
    if not line.startswith("#"))


class LeaseError(Exception):
    """Base class. `resource` may be None."""

    def __init__(self, text: str, resource: Optional[str] = None) -> None:
        super().__init__(text)
        self.resource = resource

    def __reduce__(self) -> Any:
        return _unpickle, (type(self), self.args, self.__dict__)


def _unpickle(kind: type[LeaseError], args: tuple[Any, ...], state: dict[str, Any]) -> LeaseError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class LeaseTaken(LeaseError):
    """Somebody else has the lease. `reason`, `blocked_by` and `blocked_for` (seconds) are those of lease_request."""

    def __init__(self, resource: str, reason: str, blocked_by: Optional[str], blocked_for: Optional[float]) -> None:
        by = f" by {blocked_by}" if blocked_by else ""
        super().__init__(f'lease on "{resource}" is taken ({reason}{by})', resource)
        self.reason = reason
        self.blocked_by = blocked_by
        self.blocked_for = blocked_for


class LeaseLost(LeaseError):
    """The lease is not held any longer. `reason`: expired, broken, taken_over, closed or released."""

    def __init__(self, resource: str, reason: str, text: Optional[str] = None) -> None:
        super().__init__(f'lease on "{resource}" is lost: {text or _TEXTS[reason]}', resource)
        self.reason = reason


class OutcomeUnknown(LeaseError):
    """The request was sent, and no answer came."""


class Closed(LeaseError):
    """close() was called."""


class Cancelled(LeaseError):
    """Cancel.cancel() was called."""


def sort(error: BaseException, sent: bool) -> str:
    """What to do after an error of a statement that was sent, or was to be sent."""
    if not isinstance(error, psycopg.Error):
        return NOT_AGAIN
    state = error.sqlstate
    if state is None:
        if not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return NOT_AGAIN
        condition = "no answer" if sent else "not connected"
        if type(error).__name__ == "PoolClosed":
            condition = "pool closed"
        return _table[condition]
    what = next((_table[state[:n]] for n in range(5, 1, -1) if state[:n] in _table), NOT_AGAIN)
    return _table["not connected"] if what == UNKNOWN and not sent else what
