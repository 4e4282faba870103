"""Leases for asyncio. What is done is in _core.py, in threads: a busy event loop stops neither renewal nor deadline.

The half for threads, _sync.py, is generated from this file by ../generate_sync.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import warnings
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Optional, TypeVar, Union

import psycopg

from ._core import Call, Core, Guard
from ._errors import (
    BROKEN, NOT_AGAIN, NOT_HELD, RELEASED, UNKNOWN, Cancelled, Closed, LeaseLost, LeaseTaken, OutcomeUnknown, sort)
from ._keeper import Record
from ._loop import now, start_thread
from ._outcome import Cancel, LoopOutcome
from ._request import ASSERT, PATIENCE, Request, Seconds, make_request, seconds
from ._source import Source, cancelled_waits, is_quiet

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool
    from typing_extensions import Unpack

    from ._request import Options

log = logging.getLogger("lease_lock")

T = TypeVar("T")
Connection = psycopg.AsyncConnection[Any]

# Idle connections for transactions that are kept for the next one.
IDLE = 4


class AsyncLease:
    """A lease that is held. As a context manager, it is released at the end of the block."""

    def __init__(self, leases: AsyncLeases, lost: asyncio.Event, on_lost: Optional[Callable[[AsyncLease], Any]],
                 loop: Any, record: Record) -> None:
        #: Set before anybody else can have the lease, unless release() ended it or the event loop was busy.
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
            # async only:
            try:
                self._loop.call_soon_threadsafe(self._call_back_in_loop)
            except RuntimeError:
                pass    # the event loop is closed

    def _call_back_in_loop(self) -> None:
        told = self._on_lost(self) if self._on_lost is not None else None
        if asyncio.iscoroutine(told):
            task = self._loop.create_task(told)
            self._leases._callbacks.add(task)
            task.add_done_callback(self._leases._callbacks.discard)
            # end.
            # sync: self._core.run_callback(self._on_lost, self)

    def _in_child(self) -> None:
        self.lost = asyncio.Event()
        self.lost.set()

    async def release(self) -> bool:
        """Release the lease. False if it is not held any longer; OutcomeUnknown if there was no answer."""
        outcome = LoopOutcome()
        try:
            self._core.end(self._record, outcome)
            return bool(await outcome.wait())
        except BaseException:
            self._core.end(self._record, None)
            raise

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        if self._record.fate == RELEASED:
            return
        held = await self._end_block()
        if not held and (error is None or isinstance(error, Exception)) and not isinstance(error, LeaseLost):
            raise self._record.loss() from error

    async def _end_block(self) -> bool:
        """False if it is known not to have been held any longer."""
        if self._leases._hands_over():
            held = self.remaining() > 0
            self._core.end(self._record, None)
            return held
        try:
            return await self.release()
        except OutcomeUnknown as unknown:
            log.warning("%s", unknown)
        except psycopg.Error as failure:
            log.warning('could not release lease on "%s": %s', self.resource, str(failure).strip())
        return True

    @asynccontextmanager
    async def transaction(self, connection: Optional[Connection] = None) -> AsyncIterator[psycopg.AsyncCursor[Any]]:
        """A transaction that asserts the lease, and may write to tables that it protects.

        Nobody else can be granted the lease before it ends. It is rolled back if the lease is lost meanwhile. COMMIT
        must be answered while the lease lasts: OutcomeUnknown otherwise.
        """
        commits = False
        try:
            async with AsyncExitStack() as stack:
                used, guard, cancelled = await self._begin(stack, connection)
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

    async def _begin(self, stack: AsyncExitStack, given: Optional[Connection]) -> tuple[Connection, Guard, list[str]]:
        """On another connection if one breaks: nothing of the user's is in the transaction yet."""
        until = now() + min(PATIENCE, self.remaining())
        pause, last = 0.05, None
        while True:
            self.check()
            try:
                async with AsyncExitStack() as inner:
                    connection = await inner.enter_async_context(self._leases._connection(given, until))
                    guard = self._core.guard(self._record, connection)
                    inner.callback(guard.end)
                    guard.begin(until)
                    cancelled = inner.enter_context(cancelled_waits(connection))
                    await inner.enter_async_context(connection.transaction())
                    await self._assert(connection)
                    guard.limit(math.inf)
                    stack.push_async_exit(inner.pop_all())
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
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)

    async def _assert(self, connection: Connection) -> None:
        async with psycopg.AsyncClientCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(ASSERT.format(schema=self._record.schema), [self.resource, self.owner, self.owner])
            rows = await cursor.fetchall()
            if rows[0][0] != self.token:
                raise psycopg.errors.ObjectNotInPrerequisiteState("the owner has a later lease")


# async only:
class _Holding:
    """What hold() returns: `await` it, or use it in `async with`."""

    def __init__(self, hold: Coroutine[Any, Any, AsyncLease]) -> None:
        self._hold = hold

    def __await__(self) -> Generator[Any, None, AsyncLease]:
        return self._hold.__await__()

    async def __aenter__(self) -> AsyncLease:
        self._lease = await self._hold
        return self._lease

    async def __aexit__(self, *error: Any) -> None:
        await self._lease.__aexit__(*error)


# end.
class AsyncLeases:
    """Leases that are renewed in the background, on one connection for all.

    `source` is a connection string of libpq, a function that returns a connection (of psycopg.connect, in a thread),
    or a psycopg_pool.AsyncConnectionPool. With a pool, `connect` may be such a string or function.
    """

    def __init__(self, source: Union[str, Callable[[], Any], AsyncConnectionPool] = "", *,
                 connect: Union[None, str, Callable[[], Any]] = None, schema: Optional[str] = None,
                 on_event: Optional[Callable[[str, str], Any]] = None) -> None:
        self._source = Source(source, connect, schema)
        self._core = Core(self._source, on_event)
        self._idle: list[Connection] = []
        self._callbacks: set[Any] = set()       # async only.

    def hold(self, resource: str, ttl: Seconds = 30, wait: Optional[Seconds] = 0, *,
             on_lost: Optional[Callable[[AsyncLease], Any]] = None, cancel: Optional[Cancel] = None,
             **options: Unpack[Options]) -> _Holding:
        """A lease, held. Waits for at most `wait` seconds (None: without limit), and raises LeaseTaken.

        Options: mode, permits, min_hold, payload, if_own, owner, stop_before and renew.
        """
        request = make_request(self._core.owner, resource, ttl, wait, **options)
        return _Holding(self._hold(request, on_lost, cancel))

    async def _hold(self, request: Request, on_lost: Optional[Callable[[AsyncLease], Any]],
                    cancel: Optional[Cancel], give_back: bool = False) -> AsyncLease:
        lost = asyncio.Event()
        outcome, loop = LoopOutcome(), asyncio.get_running_loop()
        call = Call(request, outcome, functools.partial(AsyncLease, self, lost, on_lost, loop), _setter(lost, loop))
        end = functools.partial(self._core.abandon, call, Cancelled("the call was cancelled", request.resource))
        try:
            self._core.submit(call)
            if cancel is not None:
                cancel._add(end)
            lease: AsyncLease = await outcome.wait()
        except BaseException:
            self._core.abandon(call)
            raise
        finally:
            if cancel is not None:
                cancel._remove(end)
        lease._record.take(give_back)
        return lease

    async def try_hold(self, resource: str, ttl: Seconds = 30, *, on_lost: Optional[Callable[[AsyncLease], Any]] = None,
                       cancel: Optional[Cancel] = None, **options: Unpack[Options]) -> Optional[AsyncLease]:
        """A lease, held, or None if somebody else has it."""
        try:
            return await self.hold(resource, ttl, 0, on_lost=on_lost, cancel=cancel, **options)
        except LeaseTaken:
            return None

    async def elect(self, resource: str, run: Callable[[AsyncLease], Coroutine[Any, Any, T]], ttl: Seconds = 10, *,
                    on_lost: Optional[Callable[[AsyncLease], Any]] = None, cancel: Optional[Cancel] = None,
                    **options: Unpack[Options]) -> Optional[T]:
        """Call run(lease) whenever this is the leader, until it returns while it still is. None after close().

        When the lease is lost, `run` is cancelled (with threads it has to return when lease.lost is set), and this stands
        for election again.
        """
        while not self._core.closed:
            try:
                lease = await self.hold(resource, ttl, ttl, on_lost=on_lost, cancel=cancel, **options)
            except LeaseTaken:
                continue
            except Closed:
                break
            except (psycopg.Error, OutcomeUnknown) as error:
                if isinstance(error, psycopg.Error) and sort(error, True) == NOT_AGAIN:
                    raise
                log.warning('could not be elected on "%s": %s', resource, str(error).strip())
                await asyncio.sleep(1)
                continue
            try:
                async with lease:
                    result = await _run_while_held(lease, run(lease))
                    lease.check()
                return result
            except LeaseLost as error:
                if lease._record.fate == RELEASED or error.resource != resource:
                    raise   # of another lease
                log.warning("%s", error, exc_info=error.__cause__)
            # sync: del lease     # else it is referred to while this waits
        return None

    def once(self, name: str, period: Seconds, ttl: Seconds = 30, retry_failed: bool = False, *,
             on_lost: Optional[Callable[[AsyncLease], Any]] = None, cancel: Optional[Cancel] = None,
             **options: Unpack[Options]) -> Callable[[Callable[..., Awaitable[T]]], Callable[..., Any]]:
        """Decorator of a job that runs once in a period, whichever host starts it. Its first argument is the lease.

        After a crash another host can run it when the ttl is over; after an exception, if `retry_failed`, at once.
        """
        options["min_hold"] = period
        ttl = min(seconds(ttl) or 0, seconds(period) or 0)

        def decorate(job: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[Optional[T]]]:
            @functools.wraps(job)
            async def run(*args: Any, **kwargs: Any) -> Optional[T]:
                request = make_request(self._core.owner, name, ttl, 0, **options)
                try:
                    lease = await self._hold(request, on_lost, cancel, give_back=retry_failed)
                except LeaseTaken:
                    return None
                async with lease:
                    result = await job(lease, *args, **kwargs)
                    lease._record.give_back = False
                    return result
            return run
        return decorate

    async def close(self, timeout: Seconds = 10) -> list[str]:
        """Release what is held. Leaves no thread and no connection. Returns the resources that it could not release."""
        outcome = LoopOutcome()
        self._core.close(outcome, seconds(timeout) or 0)
        left: list[str] = await outcome.wait()
        while self._idle:
            await self._idle.pop().close()
        return left

    async def __aenter__(self) -> AsyncLeases:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    def __del__(self, warn: Any = warnings.warn) -> None:
        if hasattr(self, "_core") and self._core.drop():
            warn(f"{type(self).__name__} was not closed", ResourceWarning, stacklevel=2)

    def _hands_over(self) -> bool:
        """Whether the end of a block must not wait for the server."""
        return False

    @asynccontextmanager
    async def _connection(self, given: Optional[Connection], until: float) -> AsyncIterator[Connection]:
        if given is not None:
            if given.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                raise ValueError("the connection is in a transaction, or closed")
            yield given
            return
        if self._source.pool is not None:
            async with self._source.pool.connection(timeout=max(0.001, until - now())) as connection:
                async with _closed_if_read_only(connection):
                    yield connection
            return
        connection = await self._idle_connection() or await self._open(until)
        try:
            async with _closed_if_read_only(connection):
                yield connection
        finally:
            idle = not connection.closed and connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
            if idle and len(self._idle) < IDLE and not self._core.closed:
                self._idle.append(connection)
            else:
                await connection.close()

    async def _idle_connection(self) -> Optional[Connection]:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if is_quiet(connection):
                return connection
            await connection.close()

    async def _open(self, until: float) -> Connection:
        """In a thread, which is abandoned if it takes too long."""
        outcome = LoopOutcome()
        start_thread(self._core.connect, outcome, until)
        try:
            connection = await outcome.wait()
        except BaseException:
            late = outcome.abandon()
            if late is not None:
                late.close()
            raise
        # async only:
        opened, connection = connection, psycopg.AsyncConnection(connection.pgconn)
        connection._opened = opened     # the same connection, which would be closed with it
        await connection.set_autocommit(True)
        # end.
        return connection   # type: ignore[no-any-return]


@asynccontextmanager
async def _closed_if_read_only(connection: Connection) -> AsyncIterator[None]:
    """So that the next transaction has another connection. A pool keeps none that is closed."""
    try:
        yield
    except psycopg.errors.ReadOnlySqlTransaction:
        await connection.close()
        raise


# async only:
def _setter(lost: asyncio.Event, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    def tell() -> None:
        try:
            loop.call_soon_threadsafe(lost.set)
        except RuntimeError:
            pass    # the event loop is closed
    return tell


async def _run_while_held(lease: AsyncLease, run: Coroutine[Any, Any, T]) -> T:
    """Cancel it when the lease is lost."""
    task, lost = asyncio.ensure_future(run), asyncio.ensure_future(lease.lost.wait())
    try:
        await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
            if task.cancelled():
                raise lease._record.loss()
        return task.result()
    finally:
        for future in (task, lost):
            future.cancel()
        await asyncio.gather(task, lost, return_exceptions=True)
# end.
