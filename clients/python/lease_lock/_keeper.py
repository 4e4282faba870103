"""Keeps leases alive, and tells in time when one is lost.

The holder must stop before anybody else can be granted the lease. So the end of a lease is counted here, from before
the request was sent, and two threads share the work. The *clock* never touches the network: nothing that hangs can stop
it. It tells holders of a loss while a sixth of the ttl is left, and cuts off calls that take too long by shutting down
their socket. The *renewer* has a connection of its own and renews, with one statement, all leases that have used a
third of their ttl. All state is guarded by one lock, which is never held during a call.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import socket
import threading
import time
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional

import psycopg

from ._connect import execute
from ._request import PATIENCE, RELEASE, RENEW, Grant, LeaseLost, Request, lost_connection, milliseconds, new_owner

log = logging.getLogger("lease_lock")

# Parts of the ttl: when to renew, what else is renewed with it, what a try may take, and what is left to stop.
RENEW_AT, TOGETHER, TRY, MARGIN = 1 / 3, 1 / 12, 1 / 6, 1 / 6

# The clocks of Python's waits stop in suspend, ours does not: look at it at least this often.
TICK = 1.0

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    return time.clock_gettime(_CLOCK)


class Kept:
    """A lease that was granted, and its time. `lost` is overridden by what the language's habit is."""

    def __init__(self, keeper: Keeper, request: Request, token: int, granted: float, tell: Callable[[bool], None]) -> None:
        self.resource, self.owner, self.token, self.mode = request.resource, request.owner, token, request.mode
        self._keeper = keeper
        self._ttl = request.ttl
        self._tell = tell
        self._held = True
        self._why: Optional[str] = None
        self._inherited = False
        self._alone = False
        self._cuts: set[socket.socket] = set()
        self._extend(granted)

    def _extend(self, sent: float) -> None:
        self._deadline = sent + self._ttl * (1 - MARGIN)
        self._renew_at = sent + self._ttl * RENEW_AT

    def _in_child(self) -> None:
        """Set `lost` in a child process."""

    def remaining(self) -> float:
        """Seconds until the lease is given up as lost, unless it is renewed before. The lease itself lasts longer."""
        return max(0.0, self._deadline - now()) if self._held else 0.0

    def _loss(self) -> LeaseLost:
        return LeaseLost(self.resource, self._why or "the server says so")

    def check(self) -> None:
        """Raise LeaseLost if the lease is lost, or was released."""
        if self.remaining() <= 0:
            raise LeaseLost(self.resource, self._why or ("its time is over" if self._held else "it was released"))


class Attempts:
    """Of one request: when to give up, and whether to repeat it.

    If a connection breaks after the request was sent, nobody knows whether it was granted. Then it is repeated, and a
    lease that the same owner has already is the answer.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.give_up = math.inf if request.wait is None else now() + request.wait
        self.sent = 0.0
        self.unanswered = self.repeated = False

    def next(self) -> tuple[str, dict[str, Any], float]:
        """Statement, parameters, and until when an answer must be there. To be called just before it is sent."""
        self.sent, self.repeated, self.unanswered = now(), self.unanswered, True
        left = None if self.request.wait is None else max(0.0, self.give_up - self.sent)
        statement, params = self.request.statement(left, self.repeated)
        return statement, params, math.inf if left is None else self.sent + left + PATIENCE

    def is_final(self, grant: Grant) -> bool:
        """Whether the answer can be used: a grant that took so long that it is nearly over is asked for again."""
        return not grant.granted or self.repeated or not self.request.own_owner \
            or now() < self.granted(grant) + self.request.ttl / 2

    def granted(self, grant: Grant) -> float:
        """When the lease was granted, at the earliest."""
        return self.sent + grant.waited

    def repeat_after(self, error: BaseException) -> bool:
        return self.unanswered and lost_connection(error) and self.request.own_owner \
            and now() < self.give_up + PATIENCE

    def may_be_granted(self, error: BaseException) -> bool:
        return self.unanswered and self.request.own_owner \
            and (lost_connection(error) or not isinstance(error, psycopg.Error))


class _Limit:
    def __init__(self, until: float, sock: socket.socket, request: bool) -> None:
        self.until, self.sock, self.request = until, sock, request


def _cut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other side was faster


@contextmanager
def _duplicate(connection: Any) -> Iterator[socket.socket]:
    """The socket of a connection, which can be shut down even when another thread closes the connection."""
    with socket.socket(fileno=os.dup(connection.fileno())) as sock:
        yield sock


class Keeper:
    """`connect` opens the renewer's connection within a time."""

    def __init__(self, connect: Callable[[float], psycopg.Connection[Any]]) -> None:
        self._connect = connect
        self._begin()
        _keepers.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._clock_wakes = threading.Condition(self._lock)
        self._renewer_wakes = threading.Condition(self._lock)
        self._leases: set[Kept] = set()
        self._limits: set[_Limit] = set()
        self._threads: list[threading.Thread] = []
        self._callbacks: list[threading.Thread] = []
        self._clock_sleeps_until = math.inf
        self._connection: Optional[psycopg.Connection[Any]] = None
        self._renewer_ended = False
        self.closed = False
        # Shared by leases that are counted.
        self.owner = new_owner()

    # What the holders call

    def add(self, lease: Kept) -> bool:
        """False after close(), which found nothing of this lease to release."""
        with self._lock:
            if not self.closed:
                self._leases.add(lease)
                self._start()
                self._clock_wakes.notify()
                self._renewer_wakes.notify()
            return not self.closed

    def leave(self, lease: Kept) -> bool:
        """The lease is to be released: stop renewing it. False if it is lost, or was released before."""
        with self._lock:
            self._leases.discard(lease)
            held, lease._held = lease._held, False
            return held

    def released(self, lease: Kept, held: bool, answer: bool) -> bool:
        """Whether a release shows that the lease was held until then. If it was lost unnoticed, it is now."""
        with self._lock:
            if held and not answer:
                lease._held = True
                self._lose(lease, "the server says so")
            return held and answer

    def lose(self, lease: Kept, why: str) -> None:
        with self._lock:
            self._lose(lease, why)

    @contextmanager
    def limit(self, connection: Any, until: float, request: bool = False) -> Iterator[Callable[[], None]]:
        """Cut the connection off at that time, so that a call fails at once however silent the network is.

        Yields a function that does so before.
        """
        with _duplicate(connection) as sock:
            limit = _Limit(until, sock, request)
            with self._lock:
                self._limits.add(limit)
                self._start()
                if until < self._clock_sleeps_until:
                    self._clock_wakes.notify()
                if request and self.closed:
                    _cut(sock)
            try:
                yield lambda: _cut(sock)
            finally:
                with self._lock:
                    self._limits.discard(limit)

    @contextmanager
    def cut_when_lost(self, lease: Kept, connection: Any) -> Iterator[Callable[[], None]]:
        """Cut the connection off when the lease is lost, until the function that it yields was called.

        That function raises LeaseLost if it is too late.
        """
        with _duplicate(connection) as sock:

            def keep() -> None:
                with self._lock:
                    lease.check()
                    lease._cuts.discard(sock)

            with self._lock:
                lease.check()
                lease._cuts.add(sock)
            try:
                yield keep
            finally:
                with self._lock:
                    lease._cuts.discard(sock)

    def run(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function of the user's in a thread of its own, so that it delays nobody. Under the lock."""
        thread = threading.Thread(target=function, args=args, name="lease_lock on_lost", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:   # the caller, which may be the clock, must go on
            log.error("could not start a thread for on_lost: %s", error)
        else:
            self._callbacks = [thread, *(other for other in self._callbacks if other.is_alive())]

    # The clock

    def _start(self) -> None:
        if not self._threads:
            for run, name in ((self._run_clock, "lease_lock clock"), (self._run_renewer, "lease_lock renewer")):
                self._threads.append(threading.Thread(target=run, name=name, daemon=True))
                self._threads[-1].start()

    def _run_clock(self) -> None:
        with self._lock:
            while self._leases or self._limits or not self._renewer_ended:
                time_now = now()
                for lease in [lease for lease in self._leases if lease._deadline <= time_now]:
                    self._lose(lease, "it was not renewed in time")
                for limit in [limit for limit in self._limits if limit.until <= time_now]:
                    self._limits.discard(limit)
                    _cut(limit.sock)
                ends = [lease._deadline for lease in self._leases] + [limit.until for limit in self._limits]
                self._clock_sleeps_until = min(ends, default=math.inf)
                self._clock_wakes.wait(min(self._clock_sleeps_until - now(), TICK) if ends else None)

    def _lose(self, lease: Kept, why: str, call_back: bool = True) -> None:
        if lease._held:
            lease._held, lease._why = False, why
            self._leases.discard(lease)
            for sock in lease._cuts:
                _cut(sock)
            lease._tell(call_back)

    # The renewer

    def _run_renewer(self) -> None:
        try:
            while True:
                with self._lock:
                    batch = self._wait_for_batch()
                if not batch:
                    break
                together = [lease for lease in batch if not lease._alone]
                for group in [together, *([lease] for lease in batch if lease._alone)]:
                    self._renew(group)
            self._release_rest()
        finally:
            self._drop()
            with self._lock:
                self._renewer_ended = True
                self._clock_wakes.notify()

    def _wait_for_batch(self) -> list[Kept]:
        while not self.closed:
            due = min((lease._renew_at for lease in self._leases), default=math.inf)
            if due <= now():
                return [lease for lease in self._leases if lease._renew_at - lease._ttl * TOGETHER <= now()]
            self._renewer_wakes.wait(min(due - now(), TICK) if self._leases else None)
        return []

    def _renew(self, group: list[Kept]) -> None:
        group = [lease for lease in group if lease._held]
        if not group or self.closed:
            return
        ttl = min(lease._ttl for lease in group)
        limit = min(ttl * TRY, PATIENCE, max(0.001, min(lease.remaining() for lease in group)))
        statement = RENEW.format(timeout=milliseconds(limit), lock_timeout=milliseconds(limit / 16))
        sent = now()
        try:
            answers = self._ask(statement, [*columns(group), [lease._ttl for lease in group]], limit)
        except Exception as error:  # also those of the system: no file descriptor may be left
            log.warning("could not renew %s: %s", names(group), str(error).strip())
            self._renewal_failed(group, error)
            return
        with self._lock:
            for lease, held in zip(group, answers):
                if held:
                    lease._extend(sent)
                    lease._alone = False
                else:
                    self._lose(lease, "the server says so")

    def _renewal_failed(self, group: list[Kept], error: Exception) -> None:
        """One lease can make a renewal of many fail: somebody has locked its row. Find it; the others must not suffer."""
        if self._connection is None or lost_connection(error) or not isinstance(error, psycopg.Error):
            self._drop()
        elif len(group) > 1:
            size = math.isqrt(len(group))
            for start in range(0, len(group), size):
                self._renew(group[start:start + size])
            return
        else:
            group[0]._alone = True
        for lease in group:
            lease._renew_at = now() + min(lease._ttl / 30, 1.0)

    def _ask(self, statement: str, params: list[Any], limit: float) -> list[bool]:
        """One statement on the renewer's connection; the answers are in the order of the leases."""
        if self._connection is None or self._connection.closed:
            self._connection = self._connect(limit)
        try:
            # Counted from here: a connection that took long to open must not be thrown away unused.
            with self.limit(self._connection, now() + limit):
                return [bool(answer) for _, answer in sorted(execute(self._connection, statement, params))]
        finally:
            if self._connection.closed:
                self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # The end

    def close(self) -> None:
        """Release what is held, and wait until both threads have ended."""
        with self._lock:
            self.closed = True
            for limit in self._limits:
                if limit.request:
                    _cut(limit.sock)
            self._renewer_wakes.notify()
            threads = self._threads
        for thread in threads:
            thread.join()
        for thread in self._callbacks:
            if thread is not threading.current_thread():
                thread.join()

    def _release_rest(self) -> None:
        """The last act of the renewer. Holders that are still at work must stop first."""
        with self._lock:
            rest = list(self._leases)
            for lease in rest:
                self._lose(lease, "leases were closed", call_back=False)
        if rest:
            try:
                self._ask(RELEASE.format(timeout=milliseconds(PATIENCE)), columns(rest), PATIENCE)
            except Exception as error:
                log.warning("could not release %s: %s", names(rest), str(error).strip())

    def _in_child(self) -> None:
        """After a fork the leases are those of the parent. Here they are lost, without a callback."""
        leases = self._leases
        self._begin()
        for lease in leases:
            lease._held, lease._why, lease._inherited = False, "it belongs to the parent process", True
            lease._cuts.clear()
            lease._in_child()


def columns(leases: list[Kept]) -> list[list[Any]]:
    return [[lease.resource for lease in leases], [lease.owner for lease in leases], [lease.token for lease in leases]]


def names(leases: list[Kept]) -> str:
    return f'lease on "{leases[0].resource}"' + (f" and {len(leases) - 1} others" if len(leases) > 1 else "")


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


def _fork() -> None:
    for keeper in list(_keepers):
        keeper._in_child()


def _exit() -> None:
    for keeper in list(_keepers):
        keeper.close()


os.register_at_fork(after_in_child=_fork)
atexit.register(_exit)
