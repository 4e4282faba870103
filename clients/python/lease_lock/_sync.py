"""Leases for programs with threads. Generated from _async.py by ../generate_sync: do not edit."""

from __future__ import annotations

import time
import functools
import logging
import math
import warnings
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterator, Callable, Optional, TypeVar, Union

import psycopg

from ._core import Call, Core, Guard
from ._errors import (
    BROKEN, NOT_AGAIN, NOT_HELD, RELEASED, UNKNOWN, Cancelled, Closed, LeaseLost, LeaseTaken, OutcomeUnknown, sort)
from ._keeper import Record
from ._loop import now, start_thread
from ._outcome import Cancel, ThreadEvent, ThreadOutcome
from ._request import ASSERT, PATIENCE, Request, Seconds, make_request, seconds
from ._source import Source, cancelled_waits, is_quiet

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool
    from typing_extensions import Unpack

    from ._request import Options

log = logging.getLogger("lease_lock")

T = TypeVar("T")
Connection = psycopg.Connection[Any]

# Idle connections for transactions that are kept for the next one.
IDLE = 4


class Lease:
    """A lease that is held. As a context manager, it is released at the end of the block."""

    def __init__(self, leases: Leases, lost: ThreadEvent, on_lost: Optional[Callable[[Lease], Any]],
                 loop: Any, record: Record) -> None:
        #: Set before anybody else can have the lease, unless release() ended it.
        self.lost = lost
        self.resource, self.owner, self.token, self.mode = record.resource, record.owner, record.token, record.mode
        self._leases = leases
        self._core = leases._core
        self._on_lost = on_lost
        self._loop = loop
        self._record = record

    def remaining(self) -> float:
        """Seconds until the lease is given up as lost, unless it is renewed before. The lease itself lasts longer."""
        return self._record.remaining()

    def check(self) -> None:
        """Raise LeaseLost if the lease is lost, or was released."""
        if self.remaining() <= 0:
            raise self._record.loss()

    @property
    def contended(self) -> Optional[bool]:
        """Whether somebody waits for it, as of the last renewal. None if that is not known."""
        return self._record.contended

    def _call_back(self) -> None:
        if self._on_lost is not None:
            self._core.run_callback(self._on_lost, self)

    def _in_child(self) -> None:
        self.lost = ThreadEvent()
        self.lost.set()

    def release(self) -> bool:
        """Release the lease. False if it is not held any longer; OutcomeUnknown if there was no answer."""
        outcome = ThreadOutcome()
        try:
            self._core.end(self._record, outcome)
            return bool(outcome.wait())
        except BaseException:
            self._core.end(self._record, None)
            raise

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        if self._record.fate == RELEASED:
            return
        held = self._end_block()
        if not held and (error is None or isinstance(error, Exception)) and not isinstance(error, LeaseLost):
            raise self._record.loss() from error

    def _end_block(self) -> bool:
        """False if it is known not to have been held any longer."""
        if self._leases._hands_over():
            held = self.remaining() > 0
            self._core.end(self._record, None)
            return held
        try:
            return self.release()
        except OutcomeUnknown as unknown:
            log.warning("%s", unknown)
        except psycopg.Error as failure:
            log.warning('could not release lease on "%s": %s', self.resource, str(failure).strip())
        return True

    @contextmanager
    def transaction(self, connection: Optional[Connection] = None) -> Iterator[psycopg.Cursor[Any]]:
        """A transaction that asserts the lease, and may write to tables that it protects.

        Nobody else can be granted the lease before it ends. It is rolled back if the lease is lost meanwhile. COMMIT
        must be answered while the lease lasts: OutcomeUnknown otherwise.
        """
        commits = False
        try:
            with ExitStack() as stack:
                used, guard, cancelled = self._begin(stack, connection)
                try:
                    yield used.cursor()
                    self._may_commit(used, guard)
                except BaseException:
                    guard.limit(now() + PATIENCE)
                    raise
                guard.limit(self._record.deadline)
                commits = True
            if cancelled:
                raise OutcomeUnknown(f'COMMIT under the lease on "{self.resource}": {cancelled[0]}', self.resource)
        except psycopg.Error as error:
            if commits and sort(error, True) == UNKNOWN:
                raise OutcomeUnknown(f'no answer to COMMIT under the lease on "{self.resource}"', self.resource) from error
            if not commits and self._record.fate is not None:
                raise self._record.loss() from error
            raise

    def _may_commit(self, connection: Connection, guard: Guard) -> None:
        status = connection.info.transaction_status
        if status == psycopg.pq.TransactionStatus.INERROR:
            raise psycopg.errors.InFailedSqlTransaction("the transaction had failed, and was rolled back")
        self.check()
        if status != psycopg.pq.TransactionStatus.INTRANS:
            raise psycopg.ProgrammingError("the block has ended its transaction")
        if guard.was_cut:
            raise psycopg.OperationalError("the connection was cut off before COMMIT")

    def _begin(self, stack: ExitStack, given: Optional[Connection]) -> tuple[Connection, Guard, list[str]]:
        """On another connection if one breaks: nothing of the user's is in the transaction yet."""
        until = now() + min(PATIENCE, self.remaining())
        pause, last = 0.05, None
        while True:
            self.check()
            try:
                with ExitStack() as inner:
                    connection = inner.enter_context(self._leases._connection(given, until))
                    guard = self._core.guard(self._record, connection)
                    inner.callback(guard.end)
                    guard.begin(until)
                    cancelled = inner.enter_context(cancelled_waits(connection))
                    inner.enter_context(connection.transaction())
                    self._assert(connection)
                    guard.limit(math.inf)
                    stack.push(inner.pop_all())
                    return connection, guard, cancelled
            except Closed as error:
                raise self._record.loss() from error
            except psycopg.Error as error:
                if error.sqlstate == NOT_HELD:
                    self._core.lose(self._record, BROKEN)
                    self.lost.set()
                    raise self._record.loss() from error
                if last is not None and error.sqlstate is None and now() >= until:
                    raise last      # the limit has cut off one more try: that is not why
                if given is not None or sort(error, True) == NOT_AGAIN or now() + pause >= until:
                    raise
                if last is None:
                    log.warning('transaction under "%s" failed to begin, trying again: %s', self.resource, str(error).strip())
                last = error.with_traceback(None)       # which refers to this frame, and so to the lease
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def _assert(self, connection: Connection) -> None:
        with psycopg.ClientCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            cursor.execute(ASSERT.format(schema=self._record.schema), [self.resource, self.owner, self.owner])
            rows = cursor.fetchall()
            if rows[0][0] != self.token:
                raise psycopg.errors.ObjectNotInPrerequisiteState("the owner has a later lease")


class Leases:
    """Leases that are renewed in the background, on one connection for all.

    `source` is a connection string of libpq, a function that returns a connection (of psycopg.connect, in a thread),
    or a psycopg_pool.ConnectionPool. With a pool, `connect` may be such a string or function.
    """

    def __init__(self, source: Union[str, Callable[[], Any], ConnectionPool] = "", *,
                 connect: Union[None, str, Callable[[], Any]] = None, schema: Optional[str] = None,
                 on_event: Optional[Callable[[str, str], Any]] = None) -> None:
        self._source = Source(source, connect, schema)
        self._core = Core(self._source, on_event)
        self._idle: list[Connection] = []

    def hold(self, resource: str, ttl: Seconds = 30, wait: Optional[Seconds] = 0, *,
             on_lost: Optional[Callable[[Lease], Any]] = None, cancel: Optional[Cancel] = None,
             **options: Unpack[Options]) -> Lease:
        """A lease, held. Waits for at most `wait` seconds (None: without limit), and raises LeaseTaken.

        Options: mode, permits, min_hold, payload, if_own, owner, stop_before and renew.
        """
        request = make_request(self._core.owner, resource, ttl, wait, **options)
        return self._hold(request, on_lost, cancel)

    def _hold(self, request: Request, on_lost: Optional[Callable[[Lease], Any]],
                    cancel: Optional[Cancel], give_back: bool = False) -> Lease:
        lost = ThreadEvent()
        outcome, loop = ThreadOutcome(), None
        call = Call(request, outcome, functools.partial(Lease, self, lost, on_lost, loop), lost.set)
        end = functools.partial(self._core.abandon, call, Cancelled("the call was cancelled", request.resource))
        try:
            self._core.submit(call)
            if cancel is not None:
                cancel._add(end)
            lease: Lease = outcome.wait()
        except BaseException:
            self._core.abandon(call)
            raise
        finally:
            if cancel is not None:
                cancel._remove(end)
        lease._record.take(give_back)
        return lease

    def try_hold(self, resource: str, ttl: Seconds = 30, *, on_lost: Optional[Callable[[Lease], Any]] = None,
                       cancel: Optional[Cancel] = None, **options: Unpack[Options]) -> Optional[Lease]:
        """A lease, held, or None if somebody else has it."""
        try:
            return self.hold(resource, ttl, 0, on_lost=on_lost, cancel=cancel, **options)
        except LeaseTaken:
            return None

    def elect(self, resource: str, run: Callable[[Lease], T], ttl: Seconds = 10, *,
                    on_lost: Optional[Callable[[Lease], Any]] = None, cancel: Optional[Cancel] = None,
                    **options: Unpack[Options]) -> Optional[T]:
        """Call run(lease) whenever this is the leader, until it returns while it still is. None after close().

        When the lease is lost, `run` is cancelled (with threads it has to return when lease.lost is set), and this stands
        for election again.
        """
        while not self._core.closed:
            try:
                lease = self.hold(resource, ttl, ttl, on_lost=on_lost, cancel=cancel, **options)
            except LeaseTaken:
                continue
            except Closed:
                break
            except (psycopg.Error, OutcomeUnknown) as error:
                if isinstance(error, psycopg.Error) and sort(error, True) == NOT_AGAIN:
                    raise
                log.warning('could not be elected on "%s": %s', resource, str(error).strip())
                time.sleep(1)
                continue
            try:
                with lease:
                    result = run(lease)
                    lease.check()
                return result
            except LeaseLost as error:
                if lease._record.fate == RELEASED or error.resource != resource:
                    raise   # of another lease
                log.warning("%s", error, exc_info=error.__cause__)
            del lease     # else it is referred to while this waits
        return None

    def once(self, name: str, period: Seconds, ttl: Seconds = 30, retry_failed: bool = False, *,
             on_lost: Optional[Callable[[Lease], Any]] = None, cancel: Optional[Cancel] = None,
             **options: Unpack[Options]) -> Callable[[Callable[..., T]], Callable[..., Any]]:
        """Decorator of a job that runs once in a period, whichever host starts it. Its first argument is the lease.

        After a crash another host can run it when the ttl is over; after an exception, if `retry_failed`, at once.
        """
        options["min_hold"] = period
        ttl = min(seconds(ttl) or 0, seconds(period) or 0)

        def decorate(job: Callable[..., T]) -> Callable[..., Optional[T]]:
            @functools.wraps(job)
            def run(*args: Any, **kwargs: Any) -> Optional[T]:
                request = make_request(self._core.owner, name, ttl, 0, **options)
                try:
                    lease = self._hold(request, on_lost, cancel, give_back=retry_failed)
                except LeaseTaken:
                    return None
                with lease:
                    result = job(lease, *args, **kwargs)
                    lease._record.give_back = False
                    return result
            return run
        return decorate

    def close(self, timeout: Seconds = 10) -> list[str]:
        """Release what is held. Leaves no thread and no connection. Returns the resources that it could not release."""
        outcome = ThreadOutcome()
        self._core.close(outcome, seconds(timeout) or 0)
        left: list[str] = outcome.wait()
        while self._idle:
            self._idle.pop().close()
        return left

    def __enter__(self) -> Leases:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self, warn: Any = warnings.warn) -> None:
        if hasattr(self, "_core") and self._core.drop():
            warn(f"{type(self).__name__} was not closed", ResourceWarning, stacklevel=2)

    def _hands_over(self) -> bool:
        """Whether the end of a block must not wait for the server."""
        return False

    @contextmanager
    def _connection(self, given: Optional[Connection], until: float) -> Iterator[Connection]:
        if given is not None:
            if given.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                raise ValueError("the connection is in a transaction, or closed")
            yield given
            return
        if self._source.pool is not None:
            with self._source.pool.connection(timeout=max(0.001, until - now())) as connection:
                with _closed_if_read_only(connection):
                    yield connection
            return
        connection = self._idle_connection() or self._open(until)
        try:
            with _closed_if_read_only(connection):
                yield connection
        finally:
            idle = not connection.closed and connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
            if idle and len(self._idle) < IDLE and not self._core.closed:
                self._idle.append(connection)
            else:
                connection.close()

    def _idle_connection(self) -> Optional[Connection]:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if is_quiet(connection):
                return connection
            connection.close()

    def _open(self, until: float) -> Connection:
        """In a thread, which is abandoned if it takes too long."""
        outcome = ThreadOutcome()
        start_thread(self._core.connect, outcome, until)
        try:
            connection = outcome.wait()
        except BaseException:
            late = outcome.abandon()
            if late is not None:
                late.close()
            raise
        return connection   # type: ignore[no-any-return]


@contextmanager
def _closed_if_read_only(connection: Connection) -> Iterator[None]:
    """So that the next transaction has another connection. A pool keeps none that is closed."""
    try:
        yield
    except psycopg.errors.ReadOnlySqlTransaction:
        connection.close()
        raise
