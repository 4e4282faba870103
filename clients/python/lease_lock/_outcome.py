"""A result that the loop gives and a caller takes, once. A caller that is interrupted abandons it."""

from __future__ import annotations

import asyncio
import threading
from queue import Empty, SimpleQueue
from typing import Any, Callable, Optional

from ._loop import First, now


class Outcome:
    """Decided once: by a result, by an error, or by being abandoned. The waiting is in the subclasses."""

    def __init__(self) -> None:
        self._decided = First()
        self._value: Any = None
        self._error: Optional[BaseException] = None

    @property
    def decided(self) -> bool:
        return self._decided.claimed()

    def give(self, value: Any = None, error: Optional[BaseException] = None) -> bool:
        """False if it is too late: what the value stands for is then the giver's to end."""
        if not self._decided.claim():
            return False
        self._value, self._error = value, error
        self._tell()
        return True

    def abandon(self) -> Any:
        """The value, if one had been given and not taken."""
        self._decided.claim()
        value, self._value = self._value, None
        return value

    def _take(self) -> Any:
        error, self._error = self._error, None
        value, self._value = self._value, None
        if error is not None:
            raise error
        return value

    def _tell(self) -> None:
        pass


class ThreadOutcome(Outcome):
    def __init__(self) -> None:
        super().__init__()
        # A bare lock: an exception of a signal handler leaves it as it was.
        self._there = threading.Lock()
        self._there.acquire()

    def _tell(self) -> None:
        self._there.release()

    def wait(self) -> Any:
        self._there.acquire()
        return self._take()

    def wait_until(self, until: float) -> bool:
        return self._there.acquire(timeout=max(0.0, until - now()))


class ThreadEvent(threading.Event):
    """An Event whose set() never waits. An exception of a signal handler in wait() may leave the lock of others taken."""

    def __init__(self) -> None:
        super().__init__()
        self._flag = False
        self._waiting: list[SimpleQueue[None]] = []

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        for waiter in list(self._waiting):
            waiter.put(None)

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: Optional[float] = None) -> bool:
        waiter: SimpleQueue[None] = SimpleQueue()
        try:
            self._waiting.append(waiter)
            if not self._flag:
                waiter.get(timeout=None if timeout is None else max(0.0, timeout))
        except Empty:
            return self._flag
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        return True


class LoopOutcome(Outcome):
    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._there = self._loop.create_future()

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:
            pass    # the event loop is closed

    def _set(self) -> None:
        if not self._there.done():
            self._there.set_result(None)

    async def wait(self) -> Any:
        await self._there
        return self._take()


class Cancel:
    """Ends calls that wait: `hold(..., cancel=cancel)` raises Cancelled after `cancel.cancel()`, from any thread."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], Any]] = []
        self._set = False

    def cancel(self) -> None:
        self._set = True
        for end in list(self._calls):
            end()

    def _add(self, end: Callable[[], Any]) -> None:
        self._calls.append(end)
        if self._set:
            end()

    def _remove(self, end: Callable[[], Any]) -> None:
        """It may not have been added: the call was interrupted before."""
        if end in self._calls:
            self._calls.remove(end)
