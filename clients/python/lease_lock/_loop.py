"""The thread that owns all state of a `Leases`, and the clock.

It runs short functions, one after another, and never touches the network. So nothing that hangs can delay the deadline
of a lease, and no lock is needed. `soon()` may be called anywhere, signal handlers and finalizers included.
"""

from __future__ import annotations

import _thread
import heapq
import itertools
import logging
import math
import sys
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any, Callable

# Python's waits do not count the time of a suspend: look at the clock at least this often.
TICK = 1.0

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    return time.clock_gettime(_CLOCK)


class Log:
    """Lines of the loop, written by a thread of its own: a log that nobody reads must not keep it from telling of a loss."""

    MOST = 1000     # more are not kept

    def __init__(self) -> None:
        self._logger = logging.getLogger("lease_lock")
        self.begin()

    def begin(self) -> None:
        self._lines: SimpleQueue[tuple[tuple[Any, ...], dict[str, Any]]] = SimpleQueue()
        self._writes = threading.Lock()

    def warning(self, *args: Any) -> None:
        self._put(logging.WARNING, *args)

    def error(self, *args: Any) -> None:
        self._put(logging.ERROR, *args)

    def exception(self, *args: Any) -> None:
        self._put(logging.ERROR, *args, exc_info=sys.exc_info())

    def _put(self, *args: Any, **more: Any) -> None:
        if self._lines.qsize() < self.MOST:
            self._lines.put((args, more))
        if not self._writes.locked():
            try:
                _thread.start_new_thread(self._write, ())
            except RuntimeError:
                self._write()       # no thread can be started: the interpreter ends

    def _write(self) -> None:
        while not self._lines.empty() and self._writes.acquire(blocking=False):
            try:
                while True:
                    args, more = self._lines.get_nowait()
                    self._logger.log(*args, **more)
            except Empty:
                pass
            finally:
                self._writes.release()

    def wait_until(self, until: float) -> None:
        """Until the lines are written, at most."""
        while (self._writes.locked() or not self._lines.empty()) and now() < until:
            time.sleep(0.01)


log = Log()


class First:
    """Of several threads that want to decide something, the first one does. Needs no lock, so nothing interrupts it."""

    def __init__(self) -> None:
        self._claims: list[object] = []

    def claim(self) -> bool:
        mine = object()
        self._claims.append(mine)
        return self._claims[0] is mine

    def claimed(self) -> bool:
        return bool(self._claims)


class Alarm:
    def __init__(self, time: float, run: Callable[[], Any]) -> None:
        self.time, self.run = time, run
        self.set = True

    def cancel(self) -> None:
        self.set = False
        self.run = _nothing


def _nothing() -> None:
    pass


class Loop:
    def __init__(self) -> None:
        self._inbox: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()
        self._runs = threading.Lock()
        self._alarms: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()
        self._stopped = False

    def soon(self, run: Callable[..., Any], *args: Any) -> None:
        self._inbox.put((run, args))
        if not self._runs.locked():
            _thread.start_new_thread(self._run, ())     # several may start: one stays

    def at(self, time: float, run: Callable[[], Any]) -> Alarm:
        """Called in the loop only."""
        alarm = Alarm(time, run)
        if time < math.inf:
            heapq.heappush(self._alarms, (time, next(self._numbers), alarm))
        if len(self._alarms) % 1024 == 1023:
            self._alarms = [entry for entry in self._alarms if entry[2].set]
            heapq.heapify(self._alarms)
        return alarm

    def stop(self) -> None:
        """For good. What comes later is still run, but no alarms."""
        self._stopped = True

    def _run(self) -> None:
        while not self._inbox.empty() and self._runs.acquire(blocking=False):
            try:
                while not (self._stopped and self._inbox.empty()):
                    self._ring()
                    try:
                        run, args = self._inbox.get(timeout=self._sleep())
                    except Empty:
                        continue
                    call(run, *args)
                    del run, args
            finally:
                self._runs.release()

    def _sleep(self) -> float | None:
        return max(0.0, min(self._alarms[0][0] - now(), TICK)) if self._alarms else None

    def _ring(self) -> None:
        while self._alarms and (self._alarms[0][0] <= now() or not self._alarms[0][2].set):
            call(heapq.heappop(self._alarms)[2].run)


def call(run: Callable[..., Any], *args: Any) -> None:
    try:
        run(*args)
    except Exception:
        log.exception("lease_lock")


def start_thread(run: Callable[..., Any], *args: Any) -> None:
    """A thread that nobody joins. Does not wait until it runs."""
    _thread.start_new_thread(call, (run, *args))
