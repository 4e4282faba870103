"""What a `Leases` does, whether its callers are threads or coroutines.

All of it runs in the loop (_loop.py), so there are no locks. What waits for the network is in links (_link.py): one of
the keeper (_keeper.py), a few for tries, and one for each resource that is waited for. A caller hands over a Call, and
waits for its outcome. If it is interrupted, the Call goes on until nothing is left of it.
"""

from __future__ import annotations

import atexit
import math
import os
import socket
import threading
import weakref
from collections import deque
from functools import partial
from queue import SimpleQueue
from typing import Any, Callable, Optional

import psycopg

from ._errors import AGAIN, CLOSED, MOVED, NOT_AGAIN, UNKNOWN, Closed, OutcomeUnknown, sort
from ._keeper import LOOK_AFTER, Keeper, Record
from ._link import Answer, Link
from ._loop import Alarm, Loop, call, log, now, start_thread
from ._outcome import Outcome, ThreadOutcome
from ._request import PATIENCE, Attempt, Grant, Request, new_owner
from ._source import Source, cut, duplicate

# How long a first try may take on a connection that was idle, and may have gone silent meanwhile.
TRY = 2.5

# Connections for tries, and for waits. A resource beyond that is tried in intervals.
TRIES, WAITS, INTERVAL = 4, 8, 0.5

# Connections for waits that are kept for the next one.
SPARE = 2

# Pauses after an error, in seconds.
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)


class Call:
    """One hold(), from the request to the lease."""

    def __init__(self, request: Request, outcome: Outcome, make: Callable[[Record], Any],
                 tell: Callable[[], Any]) -> None:
        self.request, self.outcome = request, outcome
        # The lease for the caller; and what sets its `lost`.
        self.make, self.tell = make, tell
        self.record: Optional[Record] = None
        start = now()
        self.give_up = math.inf if request.wait is None else start + request.wait
        self.limit = math.inf if request.wait is None else start + (request.wait or PATIENCE)
        self.last: Callable[[], Exception] = lambda: psycopg.OperationalError("no connection in time")
        self.unanswered = 0     # copies of the request that may arrive
        self.doubtful_until = 0.0
        self.undoing = False    # a grant that a failover may forget
        self.failures = 0
        self.looked_up = False
        self.link: Optional[Link] = None
        self.waits = False      # at the server
        self.alarm: Optional[Alarm] = None
        self.pause: Optional[Alarm] = None


class Core:
    def __init__(self, source: Source, on_event: Optional[Callable[..., Any]]) -> None:
        self.source = source
        self.closed = False
        self.owner = new_owner()    # of leases that are counted
        self._on_event = on_event
        self._begin()
        _cores.add(self)

    def _begin(self) -> None:
        self.loop = Loop()
        self._calls: set[Call] = set()
        self._idle: list[Link] = []
        self._busy: dict[Link, Call] = {}
        self._backlog: deque[tuple[Call, Callable[..., None]]] = deque()
        self._lines: dict[str, deque[Call]] = {}
        self._waits: dict[str, Link] = {}
        self._spare: list[Link] = []
        self._polls: dict[str, Alarm] = {}
        self._guards: set[Guard] = set()
        self._connects: set[Outcome] = set()
        self._callbacks: set[object] = set()
        self._events: Optional[SimpleQueue[Any]] = None
        self._closing: list[Outcome] = []
        self._ends = False
        self._used = False
        self.keeper = Keeper(self)

    # What callers do, in any thread

    def submit(self, call: Call) -> None:
        self._used = True
        _running.add(self)
        self.loop.soon(self._start, call)

    def abandon(self, call: Call, error: Optional[BaseException] = None) -> None:
        """Whatever becomes of the call, nobody takes its lease."""
        self.loop.soon(self._abandon, call, error)

    def end(self, record: Record, outcome: Optional[Outcome]) -> None:
        self.loop.soon(self.keeper.end, record, outcome)

    def lose(self, record: Record, reason: str) -> None:
        """A statement of the caller's has shown that it is not held."""
        if record.decide(reason):
            self.loop.soon(self.keeper.lost, record)

    def close(self, outcome: Outcome, timeout: float) -> None:
        self.closed = True
        # A callback that closes must not wait for itself.
        self.loop.soon(self._close, outcome, timeout, getattr(_thread, "callback", None))

    def drop(self) -> bool:
        """Nobody refers to the `Leases` any longer. False if there is nothing to close."""
        if self.closed or not self._used:
            return False
        self.close(Outcome(), 0)
        return True

    def connect(self, outcome: Outcome, until: float) -> None:
        """In a thread of its own: open a connection for a transaction."""
        self.loop.soon(self._connect, outcome, until)
        try:
            connection = self.source.connect(until)
        except BaseException as error:
            outcome.give(error=error)
        else:
            if not outcome.give(connection):
                connection.close()
        finally:
            self.loop.soon(self._connects.discard, outcome)

    def _connect(self, outcome: Outcome, until: float) -> None:
        """It has an end, whatever hangs."""
        if self._ends:
            outcome.give(error=Closed("leases are closed"))
        else:
            self._connects.add(outcome)
            self.loop.at(until, partial(outcome.give, error=psycopg.OperationalError("no connection in time")))

    # A call

    def _start(self, call: Call) -> None:
        if self.closed:
            self._check_end()       # or it would stay in _running
            call.outcome.give(error=Closed("leases are closed", call.request.resource))
            return
        self._calls.add(call)
        call.alarm = self.loop.at(call.limit, partial(self._expire, call))
        self._try(call)

    def _try(self, call: Call) -> None:
        call.pause = None
        self._run(call, self._tried)

    def _run(self, call: Call, done: Callable[..., None]) -> None:
        """Unless it runs: while it was in the backlog or paused, it may have been the head of its line."""
        if call.outcome.decided or call.link is not None or call.undoing:
            return
        if not self._idle and len(self._busy) >= TRIES:
            self._backlog.append((call, done))
            return
        is_brief = bool(self._idle) and call.request.own_owner and not call.failures
        link = self._idle.pop() if self._idle else Link(self.loop, self.source)
        self._busy[link] = call
        call.link = link
        end = min(call.limit, now()) + (TRY if is_brief else PATIENCE)
        link.run(Attempt(call.request, 0, end, call.unanswered > 0), end, partial(self._free, link, call, done))

    def _free(self, link: Link, call: Call, done: Callable[..., None], answer: Answer) -> None:
        del self._busy[link]
        call.link = None
        if link.unusable or self.closed:
            link.close()
        else:
            self._idle.append(link)
        if answer.error is not None and sort(answer.error, answer.sent is not None) == UNKNOWN:
            self._close_idle()      # what ended this connection, or made it silent, may have met them, too
        done(call, answer)
        while self._backlog and (self._idle or len(self._busy) < TRIES):
            self._run(*self._backlog.popleft())
        self._check_end()

    def _tried(self, call: Call, answer: Answer) -> None:
        grant = self._grant_of(call, answer)
        if grant is None:
            return
        if now() < call.limit and call.request.wait != 0:
            self._line_up(call)
        else:
            self._finish(call, call.last())

    def _grant_of(self, call: Call, answer: Answer) -> Optional[Grant]:
        """A refusal, for the caller to go on with. Everything else is dealt with here."""
        if answer.error is not None:
            self._failed(call, answer.error, answer.sent is not None)
            return None
        assert answer.sent is not None
        grant, request = Grant(*answer.rows[0]), call.request
        since = answer.sent + grant.waited / 1000
        if not grant.granted:
            if call.outcome.decided:
                self._forget(call)
                return None
            asked = now()
            call.last = lambda: request.taken(grant, asked)
            return grant
        record = Record(request, grant.token, since, self.keeper.row_of(request, grant.token))
        if answer.unsafe and not call.outcome.decided:
            log.warning('lease on "%s" was granted, but the synchronous standby did not confirm it: asking again',
                        request.resource)
            call.last = lambda: psycopg.OperationalError("the synchronous standby did not confirm the grant")
            call.undoing = True     # whatever was asked meanwhile would be told of the grant that ends
            self.keeper.end(record, None, lambda: self._undone(call))
        elif request.own_owner and now() >= since + request.ttl / 2 and not call.outcome.decided:
            # It took so long that the lease is nearly over: ask for it again.
            call.unanswered += 1
            call.last = lambda: psycopg.OperationalError("answers take longer than the lease lasts")
            self._again(call)
        else:
            self._granted(call, record)
        return None

    def _undone(self, call: Call) -> None:
        call.undoing = False
        self._again(call)

    def _granted(self, call: Call, record: Record) -> None:
        """The caller refers to the lease, the keeper only weakly."""
        self._drop(call)
        call.record = record
        if call.request.own_owner:
            record.doubtful_until, record.unanswered = call.doubtful_until, call.unanswered
        record.tell = call.tell
        lease = call.make(record)
        record.lease = weakref.ref(lease, lambda _: self.loop.soon(self.keeper.orphan, record))
        self.keeper.add(record)
        if call.outcome.give(lease):
            self.event("granted", record.resource)
        else:
            self.keeper.end(record, None)

    def _failed(self, call: Call, error: BaseException, sent: bool) -> None:
        what = sort(error, sent)
        if what == UNKNOWN:
            call.unanswered += 1
            call.doubtful_until = now() + LOOK_AFTER
        if call.outcome.decided:
            self._forget(call)
            return
        if getattr(error, "sqlstate", None) in MOVED:
            self.source.forget_schema()
            what = NOT_AGAIN if call.looked_up else AGAIN
            call.looked_up = True
        if what == UNKNOWN and not call.request.own_owner:
            unknown = OutcomeUnknown(f'no answer to a request for "{call.request.resource}"', call.request.resource)
            unknown.__cause__ = error
            self._finish(call, unknown)
        elif what == NOT_AGAIN:
            self._finish(call, error)
        else:
            if call.failures == 0:
                log.warning('request for "%s" failed, trying again: %s', call.request.resource, str(error).strip())
            call.last = lambda: error   # type: ignore[assignment, return-value]
            self._again(call)

    def _again(self, call: Call) -> None:
        if call.outcome.decided:
            self._forget(call)
            return
        pause = PAUSES[min(call.failures, len(PAUSES) - 1)]
        call.failures += 1
        if now() + pause >= call.limit:
            self._finish(call, call.last())
        else:
            call.pause = self.loop.at(now() + pause, partial(self._try, call))

    def _expire(self, call: Call) -> None:
        """The limit is over. What the server is being asked has an end of its own; so has a try that connects."""
        if call.link is None or call.waits and call.link.connecting:
            self._abandon(call, call.last())

    def _finish(self, call: Call, error: BaseException) -> None:
        call.outcome.give(error=error)
        self._forget(call)

    def _abandon(self, call: Call, error: Optional[BaseException]) -> None:
        if error is None:
            call.outcome.abandon()
        elif not call.outcome.give(error=error):
            return
        if call.record is not None:
            self.keeper.end(call.record, None)
        if call.link is not None and call.waits:
            call.link.cut()
        elif call.link is None:
            self._forget(call)

    def _forget(self, call: Call) -> None:
        """Nobody waits for the call any longer. What it may have been granted is released."""
        self._drop(call)
        if call.unanswered and call.request.own_owner:
            self.keeper.forget(call.request, call.unanswered)
            call.unanswered = 0

    def _drop(self, call: Call) -> None:
        self._calls.discard(call)
        for alarm in (call.alarm, call.pause):
            if alarm is not None:
                alarm.cancel()
        line = self._lines.get(call.request.resource)
        if line is not None and call in line:
            line.remove(call)
            self._serve(call.request.resource)

    # Waits: for each resource a line, whose head waits at the server

    def _line_up(self, call: Call) -> None:
        line = self._lines.setdefault(call.request.resource, deque())
        if call not in line:
            line.append(call)
        self._serve(call.request.resource)

    def _serve(self, resource: str) -> None:
        line = self._lines.get(resource)
        if not line:
            self._lines.pop(resource, None)
            poll = self._polls.pop(resource, None)
            if poll is not None:
                poll.cancel()
            return
        head = line[0]
        if resource in self._waits or head.link is not None or head.pause is not None or head.undoing:
            return
        if len(self._waits) < WAITS:
            self._wait(resource, head)
        elif resource not in self._polls:
            self._polls[resource] = self.loop.at(now() + INTERVAL, partial(self._poll, resource))

    def _poll(self, resource: str) -> None:
        self._polls.pop(resource, None)
        line = self._lines.get(resource)
        if line and line[0].link is None:
            self._run(line[0], self._tried)

    def _wait(self, resource: str, call: Call) -> None:
        link = self._spare.pop() if self._spare else Link(self.loop, self.source)
        self._waits[resource] = link
        call.link, call.waits = link, True
        self.event("waiting", resource)
        end = call.limit + PATIENCE
        link.run(Attempt(call.request, call.give_up, end, call.unanswered > 0), end,
                 partial(self._waited, resource, link, call))

    def _waited(self, resource: str, link: Link, call: Call, answer: Answer) -> None:
        del self._waits[resource]
        call.link, call.waits = None, False
        if link.unusable or self.closed or len(self._spare) >= SPARE:
            link.close()
        else:
            self._spare.append(link)
        if self._grant_of(call, answer) is not None:
            self._tried_again(call)
        for name in [resource, *self._lines]:
            self._serve(name)
        self._check_end()

    def _tried_again(self, call: Call) -> None:
        """The wait is over; or the server ended it early, and there is time left."""
        if now() >= min(call.limit, call.give_up):
            self._finish(call, call.last())
        else:
            self._again(call)

    # Transactions

    def guard(self, record: Record, connection: Any) -> Guard:
        """It cuts the connection off when the lease is lost, or at a time that is set."""
        return Guard(self, record, duplicate(connection))

    # What users are told

    def event(self, name: str, resource: str) -> None:
        """In the order in which it happened, by one thread. A function that hangs misses some."""
        if self._on_event is None:
            return
        if self._events is None:
            self._events = SimpleQueue()
            start_thread(_tell_events, self._events, self._on_event)
        if self._events.qsize() < 10_000:
            self._events.put((name, resource))

    def run_callback(self, run: Callable[..., Any], *args: Any) -> None:
        """A function of the user's, in a thread of its own, so that it delays nobody."""
        token = object()
        self._callbacks.add(token)

        def work() -> None:
            _thread.callback = token
            try:
                run(*args)
            finally:
                self.loop.soon(self._called, token)
        try:
            start_thread(work)
        except RuntimeError as error:
            self._callbacks.discard(token)
            log.error("could not start a thread for a callback: %s", error)

    def _called(self, token: object) -> None:
        self._callbacks.discard(token)
        self._check_end()

    # The end

    def _close(self, outcome: Outcome, timeout: float, token: object) -> None:
        self._closing.append(outcome)
        self._ends = True
        self._callbacks.discard(token)
        for each in list(self._calls):
            self._abandon(each, Closed("leases are closed", each.request.resource))
        self.keeper.end_all(CLOSED)
        for connecting in self._connects:
            connecting.give(error=Closed("leases are closed"))
        self._close_idle()
        self.loop.at(now() + timeout, lambda: outcome.give(self._unended()))
        self._check_end()

    def _close_idle(self) -> None:
        for link in [*self._idle, *self._spare]:
            link.close()
        self._idle, self._spare = [], []

    def _unended(self) -> list[str]:
        """Resources of what is not released, or may still be granted."""
        resources = [call.request.resource for call in self._busy.values()]
        return list(dict.fromkeys([*self.keeper.unended(), *resources, *self._waits]))

    def _check_end(self) -> None:
        if self._ends and not self._busy and not self._waits and not self.keeper.ends:
            self.keeper.stop()
            if not self._callbacks:
                for outcome in self._closing:
                    outcome.give([])
                self._closing = []
                if not self._guards:
                    if self._events is not None:
                        self._events.put(None)
                        self._events = None
                    _running.discard(self)
                    self.loop.stop()

    def spare(self) -> Optional[Link]:
        """A connection that nobody uses."""
        kept = self._idle or self._spare
        return kept.pop() if kept else None

    def counts(self) -> dict[str, int]:
        return {"leases": len(self.keeper.records), "ending": len(self.keeper.ends), "waits": len(self._waits)}

    def _in_child(self) -> None:
        """After a fork the leases are those of the parent. Here they are lost, without a callback."""
        records = self.keeper.records
        self._begin()
        self.owner = new_owner()
        for record in records:
            record.inherit()


class Guard:
    """All but the constructor and the three calls of users run in the loop. Who begins it can end it already."""

    def __init__(self, core: Core, record: Record, sock: socket.socket) -> None:
        self._core, self._record, self._sock = core, record, sock
        self._alarm: Optional[Alarm] = None
        self.was_cut = False

    def begin(self, until: float) -> None:
        """From now on it is cut off at that time, or when the lease is lost."""
        self._core.loop.soon(self._begin)
        self.limit(until)

    def limit(self, until: float) -> None:
        """The time changes."""
        self._core.loop.soon(self._limit, until)

    def end(self) -> None:
        self._core.loop.soon(self._end)

    def _begin(self) -> None:
        self._core._guards.add(self)
        self._record.cuts.add(self.cut)
        if self._record.fate is not None:
            self.cut()

    def cut(self) -> None:
        self.was_cut = True
        cut(self._sock)

    def _limit(self, until: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._core.loop.at(until, self.cut)

    def _end(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._core._guards.discard(self)
        self._record.cuts.discard(self.cut)
        self._sock.close()
        self._core._check_end()


def _tell_events(events: SimpleQueue[Any], tell: Callable[..., Any]) -> None:
    while (event := events.get()) is not None:
        call(tell, *event)


_thread = threading.local()
_cores: weakref.WeakSet[Core] = weakref.WeakSet()
_running: set[Core] = set()


def _fork() -> None:
    log.begin()
    _running.clear()
    for core in list(_cores):
        core._in_child()


def _exit() -> None:
    """Release what is held when the interpreter ends."""
    outcomes = []
    for core in list(_running):
        outcome = ThreadOutcome()
        try:
            core.close(outcome, PATIENCE)
            outcomes.append(outcome)
        except RuntimeError:
            pass    # its loop has ended, and no thread can be started any longer
    until = now() + PATIENCE + 1
    for outcome in outcomes:
        outcome.wait_until(until)
    log.wait_until(now() + 1)


os.register_at_fork(after_in_child=_fork)
atexit.register(_exit)
