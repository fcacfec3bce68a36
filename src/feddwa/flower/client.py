"""The ClientApp: runs the client side of the algorithm on the node's own rows and replies.

A node sends the algorithm's upload and, of each client, the numbers of training and test samples, its FLOPs, and of its
models on its test data accuracy, loss and the run's metrics. Label counts are sent only where the algorithm discloses
them. Errors are written to the node's log; the server receives the name of the exception, never a path or a value.
"""

from collections.abc import Callable
from logging import ERROR
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore import log
from torch import Tensor

from feddwa import __version__, updates
from feddwa.build import make_engine
from feddwa.engine import Parts, Scores
from feddwa.engine.network import frozen
from feddwa.engine.rows import digest as digest_of_model
from feddwa.engine.rows import put_parts, take_parts
from feddwa.fit import check_clients
from feddwa.flower import codec, node
from feddwa.flower.codec import Malformed
from feddwa.flower.samples import digest, text_of
from feddwa.flower.settings import FlowerConfig, from_run_config
from feddwa.flower.site import Refusal, Values, admit, load_site
from feddwa.trained.store import TrainedModels, card_of, scored

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Describe the node's clients and data."""
    return _answer(message, context, describe_node)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run a round: evaluate personalised models, and train the clients of the cohort."""
    return _answer(message, context, lambda config, values: take_part(message.content, config, values))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate personalised models; a message of type train that trains nobody does the same."""
    return train(message, context)


def _answer(message: Message, context: Context, work: Callable[[FlowerConfig, Values], RecordDict]) -> Message:
    """Reply with the result of `work(config, node config)`, or with the name of the exception that it raised."""
    try:
        values, config = tuple(sorted(context.node_config.items())), from_run_config(context.run_config)
        admit(config, values)
        return Message(work(config.resolved(), values), reply_to=message)
    except Exception as error:  # of any exception, the server may learn the name only
        log(ERROR, "feddwa: %s", error, exc_info=error)
        told = f": {error}" if isinstance(error, Refusal | Malformed) else ", see the node's log"
        reason = f"{type(error).__name__}{told}"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def describe_node(config: FlowerConfig, values: Values) -> RecordDict:
    """The node's description: records "facts" and "sizes", which `NodeDescription.of` parses."""
    site = load_site(config, values)
    engine, dataset = make_engine(config, site.task), site.task.dataset
    check_clients(engine)
    data = engine.data
    facts: dict[str, Any] = {
        "version": __version__,
        "first": site.first,
        "clients": site.clients,
        "total": site.task.clients,
        "samples": text_of(dataset),
        "names": digest(dataset.class_names),
    }
    sizes = {"train": data.splits["train"].sizes[site.numbers], "test": data.answers("test")[site.numbers]}
    if data.validation_sizes is not None:
        sizes["validation"] = data.validation_sizes[site.numbers]
    counts = data.label_counts()
    if config.make_algorithm().discloses_labels and counts is not None:
        sizes["labels"] = counts[site.numbers]
    return RecordDict({"facts": ConfigRecord(facts), "sizes": codec.numbers(sizes)})


def take_part(content: RecordDict, config: FlowerConfig, values: Values) -> RecordDict:
    """Evaluate personalised models, train the rows that were asked for, evaluate those again.

    content: record "task" and the messages "deliver", where somebody is evaluated, and "download", which is left out
    where both are the same.
    Returns records "scores" and "state" and, where clients trained, the message "upload".
    """
    task = codec.settings(content, "task")
    round, clients = codec.setting(task, "round", int), codec.setting(task, "clients", int)
    rows, trains = codec.setting(task, "rows", list), codec.setting(task, "trains", list)
    tested, last = codec.setting(task, "tested", list), codec.setting(task, "last", bool)
    me = node.make_node(config, values, tuple(rows), clients)
    initial = {**me.problem.initial, **frozen(me.client_side.engine.module)}
    if codec.setting(task, "initial", str) != digest_of_model(initial):
        raise Refusal("initial model: differs from the server's; do both have the same versions of feddwa and torch?")
    tested_at, trains_at = _places(rows, tested), _places(rows, trains)
    folder = node.memory_folder(values, _name(codec.setting(task, "federation", str)), me.rows)
    memory, remembered = node.load_memory(folder, me, round)
    device = me.client_side.engine.data.device
    delivered, download = _messages(content, tested, trains, device)
    scores: dict[str, Any] = {}
    if tested:
        before = me.client_side.personal_scores(me.rows[tested_at], round, delivered, take_parts(memory, tested_at))
        scores |= _scores("before", before)
    nonce = codec.setting(task, "nonce", str)
    reply: dict[str, Any] = {"state": ConfigRecord({"remembered": remembered, "nonce": nonce})}
    if last:
        mine, engine = me.rows[tested_at], me.client_side.engine
        models, buffers = me.client_side.personal(mine, round, delivered, take_parts(memory, tested_at))
        card = card_of(config, load_site(config, values).task.dataset, engine)
        card = scored(card.only(mine.tolist()), before, round - 1)
        node.save_models(folder, mine, TrainedModels(card, {**engine.complete(models), **buffers}, engine.module))
    if trains:
        upload, new, flops = me.client_side.train(me.rows[trains_at], round, download, take_parts(memory, trains_at))
        after = me.client_side.trained_scores(me.rows[trains_at], round, upload, new, me.rows[tested_at])
        # The server will refuse the other updates, so their clients keep the memory from before the round.
        finite = updates.finite(upload, len(trains)).nonzero().flatten()
        node.save_memory(folder, round, put_parts(memory, trains_at[finite], take_parts(new, finite)))
        scores |= {**_scores("after", after), "flops": flops.tolist()}
        reply |= codec.pack("upload", upload)
    return RecordDict({"scores": ConfigRecord(scores), **reply})


def _messages(content: RecordDict, tested: list[int], trains: list[int], device: torch.device) -> tuple[Parts, Parts]:
    """The messages from which models are made and trained; they leave the content, so that memory has them once."""
    delivered = codec.unpack("deliver", content, len(tested), device) if tested else {}
    if "download" in content or not tested:
        download = codec.unpack("download", content, len(trains), device) if trains else {}
    else:
        download = take_parts(delivered, _places(tested, trains))
    for name in ("deliver", "download"):
        content.pop(name, None)
    return delivered, download


def _scores(when: str, scores: Scores) -> dict[str, list[float]]:
    return {f"{when}.{name}": value.tolist() for name, value in scores.named().items()}


def _places(whole: list[int], part: list[int]) -> Tensor:
    """Positions (k,) of the numbers `part` in the list `whole`; Refusal where one is missing or given twice."""
    if len(set(part)) < len(part) or not set(part) <= set(whole):
        raise Refusal("rows: not those of this node")
    return torch.tensor([whole.index(number) for number in part], dtype=torch.int64)


def _name(federation: str) -> str:
    """`federation`, checked: it becomes the name of a folder, so it must not contain a path."""
    if not federation.isalnum() or len(federation) > 64:
        raise Refusal("federation: must be a name of letters and digits")
    return federation
