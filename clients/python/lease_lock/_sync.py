"""Leases for programs with threads."""

from __future__ import annotations

import functools
import threading
import time
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, TypeVar, Union

import psycopg

from ._connect import connect, execute, is_quiet
from ._keeper import Attempts, Keeper, Kept, columns, log, names, now
from ._request import (
    ASSERT, NOT_HELD, PATIENCE, RELEASE, RELEASE_UNKNOWN, Closed, Grant, LeaseLost, LeaseTaken, Request, Seconds,
    lost_connection, make_request, milliseconds)

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

T = TypeVar("T")

# Idle connections that are kept for the next call.
IDLE = 4


class Lease(Kept):
    """A lease that is held. As a context manager, it is released at the end of the block."""

    def __init__(self, leases: Leases, request: Request, token: int, granted: float,
                 on_lost: Optional[Callable[[Lease], Any]]) -> None:
        #: Set before anybody else can have the lease, unless release() ended it.
        self.lost = threading.Event()
        self._leases = leases
        self._on_lost = on_lost
        super().__init__(leases._keeper, request, token, granted, self._tell_threads)

    def _tell_threads(self, call_back: bool) -> None:
        self.lost.set()
        if call_back and self._on_lost is not None:
            self._keeper.run(self._on_lost, self)

    def _in_child(self) -> None:
        self.lost = threading.Event()
        self.lost.set()

    def release(self) -> bool:
        """Release the lease. False if it is not held any longer. What the server cannot be told ends with its time."""
        held = self._keeper.leave(self)
        if self._inherited or (not held and (self._why is None or self._keeper.closed)):
            return False
        return self._keeper.released(self, held, self._leases._release(self))

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        released = self._why is None and not self._held
        if not released and not self.release() and (error is None or isinstance(error, Exception)):
            if not isinstance(error, LeaseLost):
                raise self._loss() from error

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Cursor[Any]]:
        """A transaction that asserts the lease, and may write to tables that it protects.

        Nobody else can be granted the lease before it ends. It is rolled back if the lease is lost meanwhile.
        """
        with ExitStack() as stack:
            try:
                cursor, keep = self._begin(stack)
                yield cursor
                if cursor.connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR:
                    raise psycopg.errors.InFailedSqlTransaction("the transaction had failed, and was rolled back")
                keep()
            except psycopg.Error as error:
                if self._why is not None:
                    raise self._loss() from error
                raise

    def _begin(self, stack: ExitStack) -> tuple[psycopg.Cursor[Any], Callable[[], None]]:
        """On another connection if one breaks: nothing of the user's is in the transaction yet."""
        while True:
            self.check()
            try:
                with ExitStack() as inner:
                    connection = inner.enter_context(self._leases._connection(self.remaining()))
                    keep = inner.enter_context(self._keeper.cut_when_lost(self, connection))
                    inner.enter_context(connection.transaction())
                    with psycopg.ClientCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
                        cursor.execute(ASSERT, [self.resource, self.owner, self.owner])
                        if cursor.fetchall()[0][0] != self.token:
                            raise psycopg.errors.ObjectNotInPrerequisiteState("the owner has a later lease")
                    stack.push(inner.pop_all())
                    return connection.cursor(), keep
            except psycopg.Error as error:
                if error.sqlstate == NOT_HELD:
                    self._keeper.lose(self, "the server says so")
                    raise self._loss() from error
                if not lost_connection(error):
                    raise
            time.sleep(0.05)


class Leases:
    """Leases that are renewed in the background, on one connection for all.

    `source` is a connection string of libpq or a psycopg_pool.ConnectionPool.
    """

    def __init__(self, source: Union[str, ConnectionPool] = "") -> None:
        self._pool = None if isinstance(source, str) else source
        conninfo, kwargs = (source, {}) if isinstance(source, str) else (source.conninfo, source.kwargs)
        self._open = functools.partial(connect, conninfo, kwargs)
        self._idle: list[psycopg.Connection[Any]] = []
        self._keeper = Keeper(self._open)

    def hold(self, resource: str, ttl: Seconds = 30, wait: Optional[Seconds] = 0, *,
             on_lost: Optional[Callable[[Lease], Any]] = None, **options: Any) -> Lease:
        """A lease, held. Waits for at most `wait` seconds (None: without limit), and raises LeaseTaken.

        Options: mode, permits, min_hold, lock_delay, payload, if_own and owner.
        """
        request = make_request(self._keeper.owner, resource, ttl, wait, **options)
        granted, grant = self._request(request)
        if not grant.granted:
            raise request.taken(grant)
        lease = Lease(self, request, grant.token, granted, on_lost)
        if not self._keeper.add(lease):
            lease.release()
            raise Closed("leases are closed")
        return lease

    def try_hold(self, resource: str, ttl: Seconds = 30, **options: Any) -> Optional[Lease]:
        """A lease, held, or None if somebody else has it."""
        try:
            return self.hold(resource, ttl, 0, **options)
        except LeaseTaken:
            return None

    def elect(self, resource: str, run: Callable[[Lease], T], ttl: Seconds = 10, **options: Any) -> Optional[T]:
        """Call run(lease) whenever this is the leader, until it returns while it still is. None after close().

        `run` has to return when lease.lost is set; then this stands for election again.
        """
        while not self._keeper.closed:
            try:
                lease = self.hold(resource, ttl, ttl, **options)
            except LeaseTaken:
                continue
            except Closed:
                break
            except psycopg.Error as error:
                if not lost_connection(error):
                    raise
                log.warning('no server to be elected on for "%s": %s', resource, str(error).strip())
                time.sleep(1)
                continue
            try:
                with lease:
                    result = run(lease)
                    lease.check()
                return result
            except LeaseLost as error:
                if lease._why is None and error.resource != resource:
                    raise   # of another lease
                log.warning("%s", error, exc_info=error.__cause__)
        return None

    def once(self, name: str, period: Seconds, **options: Any) -> Callable[[Callable[..., T]], Callable[..., Any]]:
        """Decorator of a job that runs once in a period, whichever host starts it. Its first argument is the lease."""

        def decorate(job: Callable[..., T]) -> Callable[..., Optional[T]]:
            @functools.wraps(job)
            def run(*args: Any, **kwargs: Any) -> Optional[T]:
                lease = self.try_hold(name, period, min_hold=period, **options)
                if lease is None:
                    return None
                with lease:
                    return job(lease, *args, **kwargs)
            return run
        return decorate

    def close(self) -> None:
        """Release what is held. Leaves no thread and no connection."""
        self._keeper.close()
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Leases:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @contextmanager
    def _connection(self, limit: float) -> Iterator[psycopg.Connection[Any]]:
        if self._pool is not None:
            with self._pool.connection(timeout=limit) as connection:
                yield connection
            return
        connection = self._idle_connection() or self._open(min(limit, PATIENCE))
        try:
            yield connection
        finally:
            idle = not connection.closed and connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
            if idle and len(self._idle) < IDLE and not self._keeper.closed:
                self._idle.append(connection)
            else:
                connection.close()

    def _idle_connection(self) -> Optional[psycopg.Connection[Any]]:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if is_quiet(connection):
                return connection
            connection.close()

    def _request(self, request: Request) -> tuple[float, Grant]:
        """When the lease was granted, at the earliest, and the answer."""
        attempts = Attempts(request)
        while True:
            try:
                if self._keeper.closed:
                    raise Closed("leases are closed")
                with self._connection(PATIENCE) as connection:
                    statement, params, until = attempts.next()
                    with self._keeper.limit(connection, until, request=True):
                        grant = Grant(*execute(connection, statement, params)[0])
                if attempts.is_final(grant):
                    if attempts.repeated and not grant.granted:
                        self._forget(request)
                    return attempts.granted(grant), grant
            except BaseException as error:
                if self._keeper.closed or not attempts.repeat_after(error):
                    if attempts.may_be_granted(error):
                        self._forget(request)
                    if self._keeper.closed and not isinstance(error, Closed):
                        raise Closed("leases are closed") from error
                    raise
                time.sleep(0.05)

    def _release(self, lease: Lease) -> bool:
        """Twice at most: the first connection may have broken long ago, or after the release."""
        for repeated in (False, True):
            try:
                with self._connection(PATIENCE) as connection, self._keeper.limit(connection, now() + PATIENCE):
                    statement = RELEASE.format(timeout=milliseconds(PATIENCE))
                    return bool(execute(connection, statement, columns([lease]))[0][1]) or repeated
            except psycopg.Error as error:
                if repeated or not lost_connection(error):
                    log.warning("could not release %s: %s", names([lease]), str(error).strip())
                    return True
        return True

    def _forget(self, request: Request) -> None:
        """Release what a request may have been granted, whose answer nobody waits for any longer."""
        try:
            with self._connection(PATIENCE) as connection, self._keeper.limit(connection, now() + PATIENCE):
                execute(connection, RELEASE_UNKNOWN.format(timeout=milliseconds(PATIENCE)),
                        [request.resource, request.owner])
        except psycopg.Error as error:
            log.warning('could not release lease on "%s": %s', request.resource, str(error).strip())
