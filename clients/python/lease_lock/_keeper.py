"""Keeps leases alive, ends them, and tells in time when one is lost. All of it runs in the loop.

The holder must stop before anybody else can be granted the lease. So the end of a lease is counted here, from before
the request was sent, and the loop tells of a loss `stop_before` seconds earlier. One connection renews and ends leases:
renewals go first, with one statement for all leases that are nearly due. An end that meets a lock is tried again until
its lease is over, and not waited for.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._errors import BROKEN, CLOSED, EXPIRED, MOVED, NOT_AGAIN, RELEASED, TAKEN_OVER, UNKNOWN, Closed, LeaseLost, OutcomeUnknown, sort
from ._link import Answer, Link
from ._loop import Alarm, First, log, now, start_thread
from ._outcome import Outcome
from ._request import GIVE_BACK, PATIENCE, RELEASE, RENEW, Request, settings

if TYPE_CHECKING:
    from ._core import Core

# Parts of the ttl: when to renew, what else is renewed with it, and what a try may take.
RENEW_AT, TOGETHER, TRY = 1 / 3, 1 / 12, 1 / 6

# How long an owner whose request was abandoned is looked after.
LOOK_AFTER = 1.5

# How long an end waits for a lock before it is tried again.
LOCK_TIMEOUT = 0.1


class Row:
    """A lease at the server. Holds of one owner may share it: it lasts as long as the longest of them, even an ended one."""

    def __init__(self) -> None:
        self.over = 0.0


class Record:
    """A lease that was granted, and its times."""

    def __init__(self, request: Request, token: int, since: float, row: Row) -> None:
        self.resource, self.owner, self.token, self.mode = request.resource, request.owner, token, request.mode
        self.ttl, self.stop_before, self.renew = request.ttl, request.stop_before, request.renew
        self.request, self.schema, self.own_owner = request, request.schema, request.own_owner
        self.fate: Optional[str] = None
        self.alarm: Optional[Alarm] = None
        self._decided = First()
        self.inherited = False
        self.contended: Optional[bool] = None
        self.give_back = True   # at its end it is not kept for its min_hold: nobody has worked, or the work has not succeeded
        self.doubtful_until = 0.0   # until then,
        self.unanswered = 0         # so many more copies of its request may arrive
        self.alone = False      # renewed apart from others, since its row is locked
        self.lease: Callable[[], Any] = lambda: None     # a weak reference
        self.cuts: set[Callable[[], None]] = set()
        self.tell: Callable[[], None] = lambda: None     # sets `lost`
        self.row = row
        self.over = 0.0         # it has certainly ended at the server, whatever became of a renewal without an answer
        self.extend(since)

    def extend(self, sent: float) -> None:
        left = self.ttl - self.stop_before
        self.ends = sent + self.ttl
        self.may_last(self.ends)
        self.deadline = sent + left
        self.renew_at = sent + min(self.ttl * RENEW_AT, left / 2)
        self.limit = min(self.ttl * TRY, left / 4, PATIENCE)     # of a renewal

    def may_last(self, until: float) -> None:
        self.over = max(self.over, until)
        self.row.over = max(self.row.over, until)

    def remaining(self) -> float:
        return max(0.0, self.deadline - now()) if self.fate is None else 0.0

    def decide(self, fate: str) -> bool:
        """False if it was lost or released before."""
        if not self._decided.claim():
            return False
        self.fate = fate
        if self.alarm is not None:
            self.alarm.cancel()
        return True

    def take(self, give_back: bool) -> None:
        """By its caller, who works from now on; not after close(), which has given it back."""
        self.give_back = give_back
        if self.fate == CLOSED:
            raise Closed("leases are closed", self.resource)

    def loss(self) -> LeaseLost:
        text = "it belongs to the parent process" if self.inherited else None
        return LeaseLost(self.resource, self.fate or EXPIRED, text)

    def inherit(self) -> None:
        self._decided.claim()
        self.fate, self.inherited = CLOSED, True
        self.cuts.clear()
        if (lease := self.lease()) is not None:
            lease._in_child()


class End:
    """A lease, or what a request may have been granted, that is to be released."""

    def __init__(self, request: Request, record: Optional[Record] = None) -> None:
        self.request, self.resource, self.owner, self.record = request, request.resource, request.owner, record
        self.token = None if record is None else record.token
        self.give_back = request.keeps and (record is None or record.give_back)
        self.due = now()
        self.pause = 0.05
        self.held = True        # as far as is known here
        self.repeats = True     # a second release ends nothing but this lease
        self.unanswered = self.alone = False
        self.sure_at = 0.0      # an answer counts from then on
        self.copies = 1         # of the request: more releases than that do not come
        self.over = 0.0         # without a record
        self.outcome: Optional[Outcome] = None
        self.then: Optional[Callable[[], None]] = None
        self.warned = False

    @property
    def until(self) -> float:
        """Then it is over by itself. A renewal that is under way may still move that. A counted hold lasts as its row does:
        until it is counted down, the row stays when the other holds have ended."""
        if self.record is None:
            return self.over
        return self.record.row.over if self.request.if_own == "count" else self.record.over


class Statement:
    def __init__(self, text: str, columns: list[Any], limit: float, lock_timeout: float) -> None:
        self._text, self._columns, self._limit, self._lock_timeout = text, columns, limit, lock_timeout

    def statement(self, schema: str, version: int) -> tuple[str, Any]:
        return settings(version, self._limit, self._lock_timeout) + self._text.format(schema=schema), self._columns


class Keeper:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._loop = core.loop
        self._link: Optional[Link] = None
        self.records: set[Record] = set()
        self.ends: list[End] = []
        self._groups: deque[list[Record]] = deque()
        self._alarm: Optional[Alarm] = None
        self._stopped = False

    # Leases

    def row_of(self, request: Request, token: int) -> Row:
        if not request.own_owner:
            for record in [*self.records, *(end.record for end in self.ends if end.record is not None)]:
                if (record.resource, record.owner, record.token) == (request.resource, request.owner, token):
                    return record.row
        return Row()

    def add(self, record: Record) -> None:
        """It takes the connection that it was granted on, unless there is one: the first renewal must not fail for want
        of another."""
        self.records.add(record)
        if self._link is None:
            self._link = self._core.spare()
        self._have_link().start()
        self._watch(record)
        self._next()

    def _watch(self, record: Record) -> None:
        """The rest of its time is the holder's, to stop: it is released then, or when the holder says that it has stopped."""
        if record.fate is None and record.deadline <= now():
            self._lose(record, EXPIRED)
            self._end(record, None, due=record.ends)
        elif record.fate is None:
            record.alarm = self._loop.at(record.deadline, partial(self._watch, record))

    def _lose(self, record: Record, reason: str, call_back: bool = True) -> None:
        if record.decide(reason):
            self.lost(record, call_back)

    def lost(self, record: Record, call_back: bool = True) -> None:
        self.records.discard(record)
        self._tell(record, call_back)

    def _tell(self, record: Record, call_back: bool) -> None:
        for cut in list(record.cuts):
            cut()
        record.tell()
        lease = record.lease()
        if lease is not None and call_back:
            lease._call_back()
        self._core.event("lost", record.resource)

    def orphan(self, record: Record) -> None:
        """Nobody refers to the lease any longer."""
        if record.fate is None:
            self._lose(record, RELEASED)
            self._end(record, None)
            # It may be made an error, and it is written to a file that nobody reads.
            start_thread(warnings.warn, f'lease on "{record.resource}" was not released', ResourceWarning, 2)

    # Ends

    def end(self, record: Record, outcome: Optional[Outcome], then: Optional[Callable[[], None]] = None) -> None:
        if record.deadline <= now():
            self._watch(record)     # its alarm is late
        if record.decide(RELEASED):
            self.records.discard(record)
            self._end(record, outcome, then)
            return
        if outcome is not None:
            outcome.give(False)
        self._end_now([end for end in self.ends if end.record is record])
        if then is not None:
            then()

    def _end_now(self, ends: list[End]) -> None:
        for end in ends:
            end.due = min(end.due, now())
        self._next()

    def _end(self, record: Record, outcome: Optional[Outcome], then: Optional[Callable[[], None]] = None,
             due: float = 0) -> None:
        end = End(record.request, record)
        end.repeats, end.due, end.held, end.then = record.own_owner, max(end.due, due), record.fate == RELEASED, then
        if outcome is not None:
            end.outcome = outcome
            self._loop.at(min(now() + PATIENCE, record.ends), partial(self._too_late, end))
        self._add_end(end)

    def forget(self, request: Request, copies: int) -> None:
        """An owner whose request has no answer. It may be granted the lease after this client has looked."""
        self._add_end(abandoned(request, copies))

    def _add_end(self, end: End) -> None:
        self.ends.append(end)
        self._next()

    def _too_late(self, end: End) -> None:
        if end.outcome is None or end.record is None or end not in self.ends:
            return
        if now() >= end.record.ends:
            self._is_over(end)
            end.outcome.give(False)
        else:
            end.outcome.give(error=OutcomeUnknown(
                f'no answer to the release of "{end.resource}": it goes on in the background', end.resource))

    def end_all(self, reason: str) -> None:
        for record in list(self.records):
            self._lose(record, reason, call_back=False)
            self._end(record, None)
        self._end_now(self.ends)

    def unended(self) -> list[str]:
        return [end.resource for end in self.ends]

    # The connection

    def _next(self) -> None:
        """Start what is due, if nothing runs."""
        if self._stopped or (self._link is not None and self._link.busy):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._drop_over()
        group = self._due_renewals()
        if group:
            self._renew(group)
        elif ends := self._due_ends():
            self._release(ends)
        else:
            times = [record.renew_at for record in self.records if record.renew] + [end.due for end in self.ends]
            if times:
                self._alarm = self._loop.at(min(times), self._next)

    def _have_link(self) -> Link:
        if self._link is None or self._link.unusable:
            self._link = Link(self._loop, self._core.source)
        return self._link

    def _ask(self, statement: Statement, limit: float, done: Callable[[Answer], None]) -> None:
        """To connect may take half of the time that is left: a connection that took long must not be thrown away unused."""
        left = min([PATIENCE, *(record.remaining() / 2 for record in self.records if record.renew)])
        self._have_link().run(statement, math.inf, lambda answer: self._answered(done, answer),
                              connecting=max(left, limit), limit=limit)

    def _answered(self, done: Callable[[Answer], None], answer: Answer) -> None:
        done(answer)
        self._next()
        self._core._check_end()

    def stop(self) -> None:
        self._stopped = True
        if self._link is not None:
            self._link.close()

    # Renewals

    def _due_renewals(self) -> list[Record]:
        time = now()
        while self._groups:
            group = [record for record in self._groups.popleft() if record.fate is None]
            if group:
                return group
        kept = [record for record in self.records if record.renew]
        if not any(record.renew_at <= time for record in kept):
            return []
        due = [record for record in kept if record.renew_at - record.ttl * TOGETHER <= time]
        self._groups.extend([record] for record in due if record.alone)
        together = [record for record in due if not record.alone]
        return together or self._groups.popleft()

    def _renew(self, group: list[Record]) -> None:
        limit = max(0.001, min(min(record.limit, record.remaining()) for record in group))
        columns = [*columns_of(group), [record.ttl for record in group]]
        self._ask(Statement(RENEW, columns, limit, limit / 16), limit, partial(self._renewed, group))

    def _renewed(self, group: list[Record], answer: Answer) -> None:
        if answer.error is not None or answer.unsafe:
            self._renewal_failed(group, answer)
            return
        assert answer.sent is not None
        for (_, held, contended, taken), record in zip(sorted(answer.rows), group):
            if held:
                record.extend(answer.sent)
                record.alone, record.contended = False, contended
                self._core.event("renewed", record.resource)
            else:
                self._lose(record, TAKEN_OVER if taken else BROKEN)

    def _renewal_failed(self, group: list[Record], answer: Answer) -> None:
        """One lease can make a renewal of many fail: somebody has locked its row. Find it; the others must not suffer."""
        state = getattr(answer.error, "sqlstate", None)
        if answer.sent is not None:
            for record in group:
                record.may_last(now() + record.ttl)
        log.warning("could not renew %s: %s", names(group), str(answer.error or "the standby did not confirm it").strip())
        if state in MOVED:
            self._core.source.forget_schema()
        elif state is not None and state[:2] not in ("08", "57", "25", "53") and len(group) > 1:
            size = math.isqrt(len(group))
            self._groups.extend(group[start:start + size] for start in range(0, len(group), size))
            return
        elif state is not None and len(group) == 1:
            group[0].alone = True
        for record in group:
            record.renew_at = now() + min(record.ttl / 30, 1.0)

    # Releases

    def _limit(self) -> float:
        """Nothing may hold up a renewal for longer."""
        return min((record.limit for record in self.records if record.renew), default=PATIENCE)

    def _drop_over(self) -> None:
        """Leases that are over by themselves."""
        time = now()
        for end in [end for end in self.ends if end.until <= time]:
            self._is_over(end)
            self._done(end, False)

    def _is_over(self, end: End) -> None:
        """The lease was over before its release was answered."""
        if end.record is not None and end.held:
            end.record.fate = EXPIRED
            end.held = False

    def _due_ends(self) -> list[End]:
        due = sorted((end for end in self.ends if end.due <= now()), key=lambda end: end.due)
        if due and (due[0].alone or due[0].give_back):
            return due[:1]
        return [end for end in due if not end.alone and not end.give_back][:500]

    def _release(self, ends: list[End]) -> None:
        limit = min(self._limit(), PATIENCE)
        text, columns = RELEASE, columns_of(ends)
        if ends[0].give_back:
            request = ends[0].request
            text, columns = GIVE_BACK, [request.ttl, request.mode, request.options["permits"], *columns]
        self._ask(Statement(text, columns, limit, min(limit / 4, LOCK_TIMEOUT)), limit, partial(self._released, ends))

    def _released(self, ends: list[End], answer: Answer) -> None:
        if answer.error is not None:
            self._release_failed(ends, answer.error, answer.sent)
            return
        assert answer.sent is not None
        for (_, released), end in zip(sorted(answer.rows), ends):
            end.copies -= bool(released)
            if released is not None and (end.copies == 0 or answer.sent >= end.sure_at):
                # It may have been released by a statement whose answer was lost.
                released = released or (end.held and end.unanswered)
                if not released and end.held and end.record is not None:
                    end.record.fate = BROKEN
                    self._tell(end.record, True)
                self._done(end, bool(released))
            else:
                self._later(end)

    def _release_failed(self, ends: list[End], error: BaseException, sent: Optional[float]) -> None:
        what = sort(error, sent is not None)
        state = getattr(error, "sqlstate", None)
        may_be_done = what == UNKNOWN and sent is not None
        if state in MOVED:
            self._core.source.forget_schema()
        for end in ends:
            end.unanswered = end.unanswered or may_be_done
            end.alone = state is not None and state[:2] not in ("08", "57", "25", "53")
            if what == NOT_AGAIN and len(ends) == 1:
                log.warning('could not release lease on "%s": %s', end.resource, str(error).strip())
                self._done(end, error=error)
            elif may_be_done and not end.repeats:
                # Once more, it would end a hold of somebody else.
                self._done(end, error=OutcomeUnknown(f'no answer to the release of "{end.resource}"', end.resource))
            else:
                if not end.warned:
                    log.warning('could not release lease on "%s", trying again: %s', end.resource, str(error).strip())
                end.warned = True
                self._later(end)

    def _later(self, end: End) -> None:
        end.due = now() + end.pause
        end.pause = min(2 * end.pause, 1.0)

    def _done(self, end: End, released: bool = False, error: Optional[BaseException] = None) -> None:
        """Starts nothing: what else was answered with it must not be sent again."""
        self.ends.remove(end)
        if end.record is not None and end.record.doubtful_until > now():
            self.ends.append(abandoned(end.request, end.record.unanswered))
        if end.outcome is not None:
            end.outcome.give(released, error)
        if end.then is not None:
            self._loop.soon(end.then)
        self._loop.soon(self._core._check_end)


def abandoned(request: Request, copies: int) -> End:
    end = End(request)
    end.held, end.copies, end.over, end.sure_at = False, copies, now() + max(request.ttl, LOOK_AFTER), now() + LOOK_AFTER
    return end


def columns_of(leases: Any) -> list[Any]:
    return [[lease.resource for lease in leases], [lease.owner for lease in leases], [lease.token for lease in leases]]


def names(records: list[Record]) -> str:
    return f'lease on "{records[0].resource}"' + (f" and {len(records) - 1} others" if len(records) > 1 else "")
