"""A grid in one process: the real ClientApp, real messages in Flower's wire format, nodes that can misbehave."""

import random
from collections.abc import Callable, Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from feddwa.flower import client
from feddwa.flower.settings import FlowerConfig, to_run_config

Fault = Callable[[Message, Message], Message | None]  # (message, honest reply) -> what the server gets; None: nothing


def wire(message: Message) -> tuple[Message, int]:
    """A message taken apart into Flower's objects and put together again, and the bytes of them."""
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {number: thing.deflate() for number, thing in get_all_nested_objects(message).items()}
    size = sum(map(len, contents.values()))
    again = inflate_object_from_contents(message.object_id, contents)
    assert isinstance(again, Message)
    again.metadata.__dict__["_message_id"] = message.object_id
    return again, size


class LocalGrid(Grid):
    """Nodes with their configurations; replies come back in a random order."""

    def __init__(self, config: FlowerConfig, nodes: dict[int, dict], keys: bool = True) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = (
            7,
            1,
            3,
        )  # as the process of a ServerApp has them
        self.run_config, self.nodes, self.keys = to_run_config(config), nodes, keys
        self.offline: set[int] = set()
        self.faults: dict[int, Fault] = {}
        self.replies: list[Message] = []
        self.kinds: list[tuple[int, str]] = []
        self.bytes = 0

    def set_run(self, run) -> None:
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *_, **__):
        raise NotImplementedError

    def send_and_receive(self, *_, **__):
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.nodes if node not in self.offline]

    def get_nodes(self) -> Iterable[NodeInfo]:
        key = (lambda node: f"key of {node}".encode()) if self.keys else (lambda node: b"")
        return [NodeInfo(node_id=node, public_key=key(node)) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            received, size = wire(message)
            self.bytes += size
            node = message.metadata.dst_node_id
            self.kinds.append((node, message.metadata.message_type))
            context = Context(0, node, self.nodes[node], RecordDict(), dict(self.run_config), series_id=0)
            reply = client.app(message=received, context=context)
            reply = self.faults[node](received, reply) if node in self.faults else reply
            if reply is not None:
                sent, size = wire(reply)
                self.bytes += size
                self.replies.append(sent)
            numbers.append(message.metadata.message_id)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        found = [reply for reply in self.replies if reply.metadata.reply_to_message_id in wanted]
        self.replies = [reply for reply in self.replies if reply not in found]
        random.Random(0).shuffle(found)
        return found


def blocks(parts: int, memory: str, **more) -> dict[int, dict]:
    """The node configs of a partition in `parts` blocks; the nodes' numbers say nothing about their place."""
    return {
        1000 - place: {"partition-id": place, "num-partitions": parts, "memory": f"{memory}/{place}", **more}
        for place in range(parts)
    }


def error(message: Message) -> Message:
    return Message(Error(5, "gone"), reply_to=message)
