"""Receives replies within limits: nothing is fetched, decoded or put together before its size is known to be allowed.

Flower's own `pull_messages` fetches all replies whole, and waits for objects that a node has announced and not sent.
The inbox fetches a reply object by object, counts, goes on to the next reply where an object is not there yet, and
gives up at the first byte too many. What an array says it is made of is added up before it is put together: it may name
the same piece a million times.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid.http_grid import HttpGrid

from feddwa.errors import one_line
from feddwa.flower import codec
from feddwa.flower.codec import Malformed
from feddwa.updates import INVALID

SETTINGS = 4e6  # bytes of a reply that are no numbers of arrays: names, shapes, settings
PIECE = "ArrayChunk"  # Flower's object with numbers of an array
OBJECTS = 2_000  # objects of a reply that are no pieces of arrays
TOLD = 300  # characters of an error that a node has sent

Answer = RecordDict | str  # the content of a reply, or why there is none


@dataclass
class Parcel:
    """A reply that is being fetched."""

    message: str  # id of the reply
    asked: str  # id of the message that it answers
    missing: list[str]  # ids of its objects that have not been fetched, the last one next
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0  # bytes fetched

    def fetch(self, pull: Callable[[str], bytes], limit: float) -> bool:
        """Fetch what is there; returns whether all of it is. Raises Malformed above `limit` bytes."""
        while self.missing:
            try:
                content = pull(self.missing[-1])
            except ObjectUnavailableError:
                return False
            except ObjectPullError as error:
                raise Malformed(f"an object is gone: {error}") from None
            self.contents[self.missing.pop()] = content
            self.size += len(content)
            _refuse_above(limit, self.size)
        return True


@dataclass
class Inbox:
    """The replies to some messages."""

    grid: Grid
    limit: float  # bytes of a reply
    parcels: list[Parcel] = field(default_factory=list)

    def collect(self, asked: Collection[str]) -> Iterator[tuple[str, Answer]]:
        """The replies to the messages with ids `asked` that have arrived since, one by one: (id, answer)."""
        if not isinstance(self.grid, HttpGrid):  # the simulation has everything in this process already
            for message in self.grid.pull_messages(list(asked)):
                yield message.metadata.reply_to_message_id, answer_of(message, self.limit)
            return
        client, run = self.grid._runtime_client, self.grid.run.run_id
        begun = {parcel.asked for parcel in self.parcels}  # the SuperLink hands out a reply once
        if left := [number for number in asked if number not in begun]:
            response = client.PullMessages(PullAppMessagesRequest(message_ids=left))
            for proto, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                names = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))
                self.parcels.append(Parcel(proto.metadata.message_id, proto.metadata.reply_to_message_id, names))
        pull = make_pull_object_fn_protobuf(client.PullObject, self.grid.node, run)
        for parcel in list(self.parcels):
            try:
                if len(parcel.missing) + len(parcel.contents) > OBJECTS + self.limit / 1e6:
                    raise Malformed(f"{len(parcel.missing):,} objects")
                if not parcel.fetch(pull, self.limit):
                    continue
                answer = opened(parcel.message, parcel.contents, self.limit)
            except Malformed as error:
                answer = _invalid(error)
            self.parcels.remove(parcel)
            client.ConfirmMessageReceived(  # the SuperLink may forget it, also where it was given up
                ConfirmMessageReceivedRequest(node=self.grid.node, run_id=run, message_object_id=parcel.message)
            )
            yield parcel.asked, answer
            del answer  # else it stays in memory while the next one is put together


def opened(message: str, contents: dict[str, bytes], limit: float) -> Answer:
    """The answer in a message's objects, id -> bytes, which are used up. An answer that is no message is an error."""
    try:
        _refuse_above(limit, _volume(contents))
        found = inflate_object_from_contents(message, contents)
        return answer_of(found, limit) if isinstance(found, Message) else f"{INVALID}: no message"
    except Malformed as error:
        return _invalid(error)
    except Exception as error:  # of Flower's decoders, which raise many types
        return f"{INVALID}: unreadable ({type(error).__name__})"


def answer_of(message: Message, limit: float) -> Answer:
    """The content of a reply, or the error that is in its place; of a node's text only what one line can hold."""
    if message.has_error():
        return f"error {message.error.code}: {one_line(message.error.reason or '')[:TOLD]}"
    try:
        _refuse_above(limit, codec.size(message.content))
    except Malformed as error:
        return _invalid(error)
    return message.content


def _invalid(error: Malformed) -> str:
    return f"{INVALID}: {error}"


def _volume(contents: Mapping[str, bytes]) -> int:
    """Bytes of all objects as they will be in memory: of an array, as many pieces as it names, each time it does."""
    heads = {name: get_object_head_values_from_object_content(content) for name, content in contents.items()}
    plain = sum(len(contents[name]) for name, (kind, _, _) in heads.items() if kind != PIECE)
    if plain > SETTINGS:
        raise Malformed(f"{plain:,} bytes of names and settings, the limit is {SETTINGS:,.0f}")
    volume = plain
    for name, (kind, children, length) in heads.items():
        if kind == "Array":
            pieces = json.loads(contents[name][len(contents[name]) - length :])["arraychunk_ids"]
            volume += sum(len(contents[children[place]]) for place in pieces)
    return volume


def _refuse_above(limit: float, size: int) -> None:
    if size > limit:
        raise Malformed(f"{size:,} bytes, the limit is {limit:,.0f}")
