"""A connection of the package's own, and the thread that waits for it.

The thread knows nothing but its job: connect if need be, send, report. It can be abandoned, so that whatever hangs
(a look-up of a name, the user's function) holds up nobody else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Callable, Optional, Protocol
import socket

import psycopg

from ._errors import READ_ONLY
from ._loop import Loop, now, start_thread
from ._request import PATIENCE
from ._source import Connection, Source, cancelled_waits, cut, duplicate, execute, is_quiet

# After a connection was cut off, its thread reports. If it does not within so many seconds, it is abandoned.
GRACE = 0.5


class Job(Protocol):
    def statement(self, schema: str, version: int) -> tuple[str, Any]:
        """Called just before it is sent."""


@dataclass
class Answer:
    rows: list[tuple[Any, ...]]
    error: Optional[BaseException] = None
    # When it was sent; None if it was not.
    sent: Optional[float] = None
    # A synchronous wait was cancelled: what was written may not survive a failover.
    unsafe: bool = False


class _Task:
    def __init__(self, job: Job, until: float, limit: float, done: Callable[[Answer], None]) -> None:
        self.job, self.until, self.limit, self.done = job, until, limit, done
        self.answer = Answer([])
        self.sock: Optional[socket.socket] = None
        self.too_late = False


class Link:
    """run(), cut() and close() are called in the loop, where `done` is called, too."""

    def __init__(self, loop: Loop, source: Source) -> None:
        self._loop = loop
        self._source = source
        self._inbox: SimpleQueue[Optional[_Task]] = SimpleQueue()
        self._task: Optional[_Task] = None
        self._thread_runs = False
        self._connection: Optional[Connection] = None     # of the thread
        self._inbox_closed = False

    @property
    def busy(self) -> bool:
        return self._task is not None

    @property
    def connecting(self) -> bool:
        """What it is to run was not sent yet."""
        return self._task is not None and self._task.answer.sent is None

    @property
    def unusable(self) -> bool:
        """Abandoned: its thread does not come back."""
        return self._task is None and self._inbox_closed

    def run(self, job: Job, until: float, done: Callable[[Answer], None], *, connecting: float = PATIENCE,
            limit: float = math.inf) -> None:
        """`connecting`: how long it may take to connect; `limit`: how long an answer, counted from when it was sent."""
        connected = min(until, now() + connecting)
        task = self._task = _Task(job, connected, limit, done)
        self._alarms = [self._loop.at(connected, lambda: self._end(task) if task.answer.sent is None else None),
                        self._loop.at(until, lambda: self._end(task))]
        self._inbox.put(task)
        self.start()

    def start(self) -> None:
        """At the end of the interpreter no thread can be started any longer."""
        if self._thread_runs:
            return
        self._thread_runs = True
        try:
            start_thread(self._work)
        except RuntimeError as error:
            self._inbox_closed = True
            if self._task is not None:
                self._loop.soon(self._finish, self._task, [], psycopg.OperationalError(str(error)))

    def cut(self) -> None:
        """End what is running: its answer is an error."""
        if self._task is not None:
            self._end(self._task)

    def close(self) -> None:
        self.cut()
        self._inbox.put(None)
        self._inbox_closed = True

    def _sent(self, task: _Task) -> None:
        if task is self._task:
            self._alarms.append(self._loop.at(now() + task.limit, lambda: self._end(task)))

    def _end(self, task: _Task) -> None:
        if task is not self._task:
            return
        task.too_late = True
        if task.sock is None:
            self._abandon(task)
        else:
            cut(task.sock)
            self._loop.at(now() + GRACE, lambda: self._abandon(task))

    def _abandon(self, task: _Task) -> None:
        if task is self._task:
            what = "no answer in time" if task.answer.sent else "no connection in time"
            self._inbox.put(None)
            self._inbox_closed = True
            self._finish(task, [], psycopg.OperationalError(what))

    def _finish(self, task: _Task, rows: list[tuple[Any, ...]], error: Optional[BaseException]) -> None:
        if task.sock is not None:
            task.sock.close()
        if task is not self._task:
            return      # abandoned before
        self._task = None
        for alarm in self._alarms:
            alarm.cancel()
        if task.too_late and task.answer.sent and isinstance(error, psycopg.Error) and error.sqlstate is None:
            error = psycopg.OperationalError("no answer in time: the connection was cut off here")
        task.done(Answer(rows, error, task.answer.sent, task.answer.unsafe))

    # In the thread

    def _work(self) -> None:
        try:
            while (task := self._inbox.get()) is not None:
                self._do(task)
                del task
        finally:
            self._drop()

    def _do(self, task: _Task) -> None:
        rows: list[tuple[Any, ...]] = []
        error: Optional[BaseException] = None
        try:
            connection = self._ready(task.until)
            task.sock = duplicate(connection)
            if task.too_late:
                raise psycopg.OperationalError("no connection in time")
            schema = self._source.schema(connection)
            statement, params = task.job.statement(schema, connection.info.server_version)
            task.answer.sent = now()
            self._loop.soon(self._sent, task)
            with cancelled_waits(connection) as cancelled:
                rows = execute(connection, statement, params)
            task.answer.unsafe = bool(cancelled)
        except BaseException as failure:
            error = failure
            if not isinstance(failure, psycopg.Error) or failure.sqlstate in (None, READ_ONLY) or task.too_late:
                self._drop()
        self._loop.soon(self._finish, task, rows, error)

    def _ready(self, until: float) -> Connection:
        if self._connection is None or not is_quiet(self._connection):
            self._drop()
            self._connection = self._source.connect(until)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
