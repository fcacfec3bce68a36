"""Sends messages and collects replies until a deadline. Flower's own loop polls every 3 s, this one every 0.1 s."""

import time
from collections.abc import Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from feddwa.updates import LATE

POLL = 0.1  # seconds between two queries for replies
LOST = "not sent"


def exchange(
    grid: Grid, contents: Mapping[int, tuple[str, RecordDict]], group: str, deadline: float
) -> dict[int, RecordDict | str]:
    """Send messages and wait `deadline` seconds for the replies.

    contents: node id -> (message type, content). Returns node id -> content of the reply, or why there is none.
    Replies are matched by the id of the message that they answer, not by their sender: in the error reply for a node
    that is gone, Flower names the SuperLink as the sender.
    """
    ends = time.monotonic() + deadline
    nodes = list(contents)
    messages = [
        Message(content, node, kind, ttl=deadline, group_id=group) for node, (kind, content) in contents.items()
    ]
    sent = set(grid.push_messages(messages)) if messages else set()
    answers: dict[int, RecordDict | str] = dict.fromkeys(nodes, LATE)
    waiting = {message.metadata.message_id: node for message, node in zip(messages, nodes, strict=True)}
    for number in waiting.keys() - sent:
        answers[waiting.pop(number)] = LOST
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                answers[node] = _failure(reply) if reply.has_error() else reply.content
        if not waiting or time.monotonic() > ends:
            break
        time.sleep(POLL)
    return answers


def _failure(reply: Message) -> str:
    return f"error {reply.error.code}: {(reply.error.reason or '')[:200]}"
