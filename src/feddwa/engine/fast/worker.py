"""A task in its own thread that takes turns with others: it runs from one request to the next."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from feddwa.engine.fast.joint import SUBMIT, JointCall
from feddwa.engine.fast.requests import Scoring, Training

T = TypeVar("T")
Request = Training | Scoring | JointCall


def _held() -> threading.Lock:
    """A held lock, to be released by another thread: a semaphore of one, cheaper than a Condition."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class _Stopped(BaseException):
    """Unwinds the thread of a stopped task."""


@dataclass
class Worker(Generic[T]):
    """A task in its own thread that runs only when asked to, from one request to the next."""

    task: Callable[[], T]
    request: Request | None = None
    reply: Any = None
    round: int = 0  # current round of its federation
    _thread: threading.Thread | None = None
    _may_run: threading.Lock = field(default_factory=_held)
    _paused: threading.Lock = field(default_factory=_held)  # free at a request, or once the task has ended
    _results: list[T] = field(default_factory=list)  # one, once the task has ended
    _error: BaseException | None = None
    _stopping: bool = False

    def run_to_request(self) -> bool:
        """Run the task to its next request; False if it has ended. Raises what the task raised."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        if self._results or self._error is not None:
            return False
        if self.request is not None and self.reply is None:
            return True  # it is still waiting
        self.request = None
        self._may_run.release()
        self._paused.acquire()
        if self._error is not None:
            raise self._error
        return self.request is not None

    def submit(self, request: Request) -> Any:
        """Submit a request and wait for its reply. Called from the task's thread."""
        self.request = request
        self._paused.release()
        self._may_run.acquire()
        if self._stopping or self.reply is None:
            raise _Stopped
        reply, self.reply = self.reply, None
        return reply

    def stop(self) -> None:
        """Unwind the task if it has not ended."""
        self._stopping = True
        if self._thread is not None:
            self._may_run.release()
            self._thread.join()

    @property
    def result(self) -> T:
        """The task's return value."""
        return self._results[0]

    def _run(self) -> None:
        self._may_run.acquire()
        SUBMIT.set(self.submit)
        try:
            if not self._stopping:
                self._results.append(self.task())
        except _Stopped:
            pass
        except BaseException as error:  # raised again by `run_to_request`, in the thread that waits for it
            self._error = error
        finally:
            self._paused.release()
