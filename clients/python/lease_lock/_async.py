"""Leases for asyncio. Renewal and the ends of leases are in threads, as in _sync.py: a busy event loop stops neither."""

from __future__ import annotations

import asyncio
import functools
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Optional, TypeVar, Union

import psycopg

from ._connect import adopt, connect, hosts, is_quiet
from ._keeper import Attempts, Keeper, Kept, columns, log, names, now
from ._request import (
    ASSERT, NOT_HELD, PATIENCE, RELEASE, RELEASE_UNKNOWN, Closed, Grant, LeaseLost, LeaseTaken, Request, Seconds,
    lost_connection, make_request, milliseconds)
from ._sync import IDLE

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

T = TypeVar("T")
Connection = psycopg.AsyncConnection[Any]


class AsyncLease(Kept):
    """A lease that is held. As a context manager, it is released at the end of the block."""

    def __init__(self, leases: AsyncLeases, request: Request, token: int, granted: float,
                 on_lost: Optional[Callable[[AsyncLease], Any]]) -> None:
        #: Set before anybody else can have the lease, unless release() ended it or the event loop was busy.
        self.lost = asyncio.Event()
        self._leases = leases
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        super().__init__(leases._keeper, request, token, granted, self._tell_loop)

    def _tell_loop(self, call_back: bool) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set_lost, call_back)
        except RuntimeError:
            pass  # the loop is closed

    def _set_lost(self, call_back: bool) -> None:
        self.lost.set()
        if call_back and self._on_lost is not None:
            told = self._on_lost(self)
            if asyncio.iscoroutine(told):
                self._leases._callbacks.add(self._loop.create_task(told))

    def _in_child(self) -> None:
        self.lost = asyncio.Event()
        self.lost.set()

    async def release(self) -> bool:
        """Release the lease. False if it is not held any longer. What the server cannot be told ends with its time."""
        held = self._keeper.leave(self)
        if self._inherited or (not held and (self._why is None or self._keeper.closed)):
            return False
        return self._keeper.released(self, held, await self._leases._release(self))

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        released = self._why is None and not self._held
        if not released and not await self.release() and (error is None or isinstance(error, Exception)):
            if not isinstance(error, LeaseLost):
                raise self._loss() from error

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[psycopg.AsyncCursor[Any]]:
        """A transaction that asserts the lease, and may write to tables that it protects.

        Nobody else can be granted the lease before it ends. It is rolled back if the lease is lost meanwhile.
        """
        async with AsyncExitStack() as stack:
            try:
                cursor, keep = await self._begin(stack)
                yield cursor
                if cursor.connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
                    raise psycopg.errors.InFailedSqlTransaction("the transaction had failed, and was rolled back")
                keep()
            except psycopg.Error as error:
                if self._why is not None:
                    raise self._loss() from error
                raise

    async def _begin(self, stack: AsyncExitStack) -> tuple[psycopg.AsyncCursor[Any], Callable[[], None]]:
        """On another connection if one breaks: nothing of the user's is in the transaction yet."""
        while True:
            self.check()
            try:
                async with AsyncExitStack() as inner:
                    connection = await inner.enter_async_context(self._leases._connection(self.remaining()))
                    keep = inner.enter_context(self._keeper.cut_when_lost(self, connection))
                    await inner.enter_async_context(connection.transaction())
                    async with psycopg.AsyncClientCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
                        await cursor.execute(ASSERT, [self.resource, self.owner, self.owner])
                        if (await cursor.fetchall())[0][0] != self.token:
                            raise psycopg.errors.ObjectNotInPrerequisiteState("the owner has a later lease")
                    stack.push_async_exit(inner.pop_all())
                    return connection.cursor(), keep
            except psycopg.Error as error:
                if error.sqlstate == NOT_HELD:
                    self._keeper.lose(self, "the server says so")
                    self.lost.set()
                    raise self._loss() from error
                if not lost_connection(error):
                    raise
            await asyncio.sleep(0.05)


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


class AsyncLeases:
    """Leases that are renewed in the background, on one connection for all.

    `source` is a connection string of libpq or a psycopg_pool.AsyncConnectionPool.
    """

    def __init__(self, source: Union[str, AsyncConnectionPool] = "") -> None:
        self._pool = None if isinstance(source, str) else source
        self._conninfo, kwargs = (source, {}) if isinstance(source, str) else (source.conninfo, source.kwargs)
        self._idle: list[Connection] = []
        self._callbacks: set[asyncio.Task[Any]] = set()
        self._keeper = Keeper(functools.partial(connect, self._conninfo, kwargs))

    def hold(self, resource: str, ttl: Seconds = 30, wait: Optional[Seconds] = 0, *,
             on_lost: Optional[Callable[[AsyncLease], Any]] = None, **options: Any) -> _Holding:
        """A lease, held. Waits for at most `wait` seconds (None: without limit), and raises LeaseTaken.

        Options: mode, permits, min_hold, lock_delay, payload, if_own and owner.
        """
        return _Holding(self._hold(make_request(self._keeper.owner, resource, ttl, wait, **options), on_lost))

    async def _hold(self, request: Request, on_lost: Optional[Callable[[AsyncLease], Any]]) -> AsyncLease:
        granted, grant = await self._request(request)
        if not grant.granted:
            raise request.taken(grant)
        lease = AsyncLease(self, request, grant.token, granted, on_lost)
        if not self._keeper.add(lease):
            await lease.release()
            raise Closed("leases are closed")
        return lease

    async def try_hold(self, resource: str, ttl: Seconds = 30, **options: Any) -> Optional[AsyncLease]:
        """A lease, held, or None if somebody else has it."""
        try:
            return await self.hold(resource, ttl, 0, **options)
        except LeaseTaken:
            return None

    async def elect(self, resource: str, run: Callable[[AsyncLease], Coroutine[Any, Any, T]], ttl: Seconds = 10,
                    **options: Any) -> Optional[T]:
        """Run run(lease) whenever this is the leader, until it returns while it still is. None after close().

        `run` is cancelled when the lease is lost; then this stands for election again.
        """
        while not self._keeper.closed:
            try:
                lease = await self.hold(resource, ttl, ttl, **options)
            except LeaseTaken:
                continue
            except Closed:
                break
            except psycopg.Error as error:
                if not lost_connection(error):
                    raise
                log.warning('no server to be elected on for "%s": %s', resource, str(error).strip())
                await asyncio.sleep(1)
                continue
            try:
                async with lease:
                    result = await _run_while_held(lease, run(lease))
                    lease.check()
                return result
            except LeaseLost as error:
                if lease._why is None and error.resource != resource:
                    raise   # of another lease
                log.warning("%s", error, exc_info=error.__cause__)
        return None

    def once(self, name: str, period: Seconds, **options: Any) -> Callable[[Callable[..., Awaitable[T]]], Callable[..., Any]]:
        """Decorator of a job that runs once in a period, whichever host starts it. Its first argument is the lease."""

        def decorate(job: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[Optional[T]]]:
            @functools.wraps(job)
            async def run(*args: Any, **kwargs: Any) -> Optional[T]:
                lease = await self.try_hold(name, period, min_hold=period, **options)
                if lease is None:
                    return None
                async with lease:
                    return await job(lease, *args, **kwargs)
            return run
        return decorate

    async def close(self) -> None:
        """Release what is held. Leaves no thread and no connection."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def close() -> None:
            self._keeper.close()
            loop.call_soon_threadsafe(closed.set)

        thread = threading.Thread(target=close, name="lease_lock close")
        thread.start()
        await closed.wait()
        thread.join()
        while self._idle:
            await self._idle.pop().close()

    async def __aenter__(self) -> AsyncLeases:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    @asynccontextmanager
    async def _connection(self, limit: float) -> AsyncIterator[Connection]:
        if self._pool is not None:
            async with self._pool.connection(timeout=limit) as connection:
                yield connection
            return
        connection = await self._idle_connection() or await self._open(min(limit, PATIENCE))
        try:
            yield connection
        finally:
            idle = not connection.closed and connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
            if idle and len(self._idle) < IDLE and not self._keeper.closed:
                self._idle.append(connection)
            else:
                await connection.close()

    async def _idle_connection(self) -> Optional[Connection]:
        while self._idle:
            connection = self._idle.pop()
            if is_quiet(connection):
                return connection
            await connection.close()
        return None

    async def _open(self, timeout: float) -> Connection:
        failure: Exception = psycopg.OperationalError("no host to connect to")
        for params in hosts(self._conninfo, {}, timeout):
            try:
                connection: Connection = await psycopg.AsyncConnection.connect(**params)
            except psycopg.OperationalError as error:
                failure = error
            else:
                adopt(connection)
                return connection
        raise failure

    async def _execute(self, connection: Connection, statement: str, params: Any, until: float,
                       request: bool = False) -> list[tuple[Any, ...]]:
        """As _connect.execute(). If the caller is cancelled, the connection cannot be used any longer."""
        with self._keeper.limit(connection, until, request) as cut:
            task = asyncio.ensure_future(_execute(connection, statement, params))
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                cut()
                await asyncio.wait({task})
                await connection.close()
                task.exception()
                raise

    async def _request(self, request: Request) -> tuple[float, Grant]:
        """When the lease was granted, at the earliest, and the answer."""
        attempts = Attempts(request)
        while True:
            try:
                if self._keeper.closed:
                    raise Closed("leases are closed")
                async with self._connection(PATIENCE) as connection:
                    statement, params, until = attempts.next()
                    grant = Grant(*(await self._execute(connection, statement, params, until, request=True))[0])
                if attempts.is_final(grant):
                    if attempts.repeated and not grant.granted:
                        await self._forget(request)
                    return attempts.granted(grant), grant
            except BaseException as error:
                if self._keeper.closed or not attempts.repeat_after(error):
                    if attempts.may_be_granted(error):
                        await self._forget(request)
                    if self._keeper.closed and isinstance(error, psycopg.Error):
                        raise Closed("leases are closed") from error
                    raise
                await asyncio.sleep(0.05)

    async def _release(self, lease: AsyncLease) -> bool:
        """Twice at most: the first connection may have broken long ago, or after the release."""
        for repeated in (False, True):
            try:
                async with self._connection(PATIENCE) as connection:
                    statement = RELEASE.format(timeout=milliseconds(PATIENCE))
                    rows = await self._execute(connection, statement, columns([lease]), now() + PATIENCE)
                    return bool(rows[0][1]) or repeated
            except psycopg.Error as error:
                if repeated or not lost_connection(error):
                    log.warning("could not release %s: %s", names([lease]), str(error).strip())
                    return True
        return True

    async def _forget(self, request: Request) -> None:
        """Release what a request may have been granted, whose answer nobody waits for any longer."""
        try:
            async with self._connection(PATIENCE) as connection:
                await self._execute(connection, RELEASE_UNKNOWN.format(timeout=milliseconds(PATIENCE)),
                                    [request.resource, request.owner], now() + PATIENCE)
        except psycopg.Error as error:
            log.warning('could not release lease on "%s": %s', request.resource, str(error).strip())


async def _execute(connection: Connection, statement: str, params: Any) -> list[tuple[Any, ...]]:
    """As _connect.execute()."""
    autocommit = connection.autocommit
    if not autocommit:
        await connection.set_autocommit(True)
    try:
        cursor = psycopg.AsyncClientCursor(connection, row_factory=psycopg.rows.tuple_row)
        await cursor.execute(statement, params)
        while cursor.nextset():
            pass
        return await cursor.fetchall()
    finally:
        if not autocommit and not connection.closed:
            await connection.set_autocommit(False)


async def _run_while_held(lease: AsyncLease, run: Coroutine[Any, Any, T]) -> T:
    """Cancel it when the lease is lost."""
    task, lost = asyncio.ensure_future(run), asyncio.ensure_future(lease.lost.wait())
    try:
        await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
            if task.cancelled():
                raise lease._loss()
        return task.result()
    finally:
        for future in (task, lost):
            future.cancel()
        await asyncio.gather(task, lost, return_exceptions=True)
