"""Sends messages and collects replies until a deadline. Flower's own loop polls every 3 s, this one every 0.1 s."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from feddwa.flower.inbox import Answer, Inbox
from feddwa.updates import LATE

POLL = 0.1  # seconds between two queries for replies
LOST = "not sent"


@dataclass
class Exchange:
    """Messages that have been sent, and the replies to them as they arrive.

    Replies are matched by the id of the message that they answer, not by their sender: in the error reply for a node
    that is gone, Flower names the SuperLink as the sender.
    """

    inbox: Inbox
    waiting: dict[str, int]  # id of a message without a reply -> node
    lost: list[int]  # nodes whose message could not be sent
    ends: float  # time of the deadline

    @classmethod
    def begin(
        cls, grid: Grid, contents: Iterable[tuple[int, str, RecordDict]], group: str, deadline: float, limit: float
    ) -> "Exchange":
        """Send messages one by one. contents: node id, message type, content; limit: bytes of a reply."""
        ends, waiting, lost = time.monotonic() + deadline, {}, []
        for node, kind, content in contents:
            message = Message(content, node, kind, ttl=deadline, group_id=group)
            if any(grid.push_messages([message])):
                waiting[message.metadata.message_id] = node
            else:
                lost.append(node)
            del content, message  # else they stay in memory while the next ones are made
        return cls(Inbox(grid, limit), waiting, lost, ends)

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() > self.ends

    def receive(self, read: Callable[[int, Answer], None]) -> None:
        """Call `read` with a node and its answer (the content of its reply, or why there is none), as they arrive.

        No reply waits in memory for the others.
        """
        for node in self.lost:
            read(node, LOST)
        self.lost = []
        if self.waiting:
            for number, answer in self.inbox.collect(list(self.waiting)):
                if number in self.waiting:
                    read(self.waiting.pop(number), answer)
                del answer


def exchange(
    grid: Grid,
    contents: Iterable[tuple[int, str, RecordDict]],
    group: str,
    deadline: float,
    limit: float,
    read: Callable[[int, Answer], None],
) -> None:
    """Send messages and wait `deadline` seconds for the replies. Arguments as of `Exchange.begin` and `receive`."""
    running = Exchange.begin(grid, contents, group, deadline, limit)
    while True:
        running.receive(read)
        if not running.waiting or running.over:
            break
        time.sleep(POLL)
    for node in running.waiting.values():
        read(node, LATE)
