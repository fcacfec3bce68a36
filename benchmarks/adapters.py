"""Adapters of many clients on one base: speed of one vectorised program against the plain loop, and its memory.

    python benchmarks/adapters.py                                       # a small BERT, 50 clients, rank 8
    python benchmarks/adapters.py --width 1024 --layers 12 --chunk 5 --device cuda   # 151 million in its layers

The plain loop is what peft's users write: one base, an adapter for every client, an SGD optimiser and a DataLoader of
each, one client after another. It is that of the package `peft` where it is installed, else one of this library's
modules, whose adapter all clients train in turn. Times are medians of epochs run in turn, divided by their steps.
--chunk clients are trained together, as by `feddwa run --chunk`: it bounds what their activations take. On a GPU two
numbers of memory are told, beside the bytes of one base and all adapters: what is allocated between two epochs, and the
most that was reserved in any, with activations, gradients and the program.
"""

import argparse
import copy
import importlib.util
from collections.abc import Callable, Iterator

import numpy as np
import torch
from engine import engine_on, race
from networks import CLASSES, Logits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from feddwa.algorithms import Local
from feddwa.engine import Engine
from feddwa.engine.network import head_name, trainable
from feddwa.models.adapters import Lora, LowRank, adapted
from feddwa.sides import ClientSide, begin, problem_of

VOCABULARY, LENGTH, SAMPLES, BATCH = 1000, 32, 16, 8


def bert(width: int, layers: int) -> nn.Module:
    """BERT of transformers with random weights, without dropout."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=width, num_hidden_layers=layers, num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width, max_position_embeddings=LENGTH, num_labels=CLASSES,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return Logits(BertForSequenceClassification(config))


def loaders(engine: Engine) -> Iterator[DataLoader]:  # type: ignore[type-arg]
    train = engine.data.splits["train"]
    for index, size in zip(train.index.cpu(), train.sizes.tolist(), strict=True):
        own = TensorDataset(engine.data.x.cpu()[index[:size]], engine.data.y.cpu()[index[:size]])
        yield DataLoader(own, batch_size=BATCH, shuffle=True)


def epoch_in_chunks(engine: Engine, chunk: int) -> Callable[[], None]:
    """One epoch of all clients as `feddwa run --algorithm local --chunk` trains them."""
    side, everybody = ClientSide.of(Local(), engine, "local", chunk), torch.arange(engine.data.clients)
    problem, buffers = problem_of(engine), engine.initial()[1]
    memory, rounds = begin(Local(), side.batchnorm, problem, buffers, engine.settings)[1], iter(range(1, 10**9))

    def epoch() -> None:
        nonlocal memory
        _, memory, _ = side.train(everybody, next(rounds), {}, memory)

    return epoch


def plain_epoch(engine: Engine, base: nn.Module, lora: Lora) -> Callable[[], None]:
    """One epoch of all clients, one after another, on one base."""
    device, clients = engine.data.device, []
    choose: Callable[[str], object]
    if importlib.util.find_spec("peft"):
        import peft

        targets = [name for name, part in engine.module.named_modules() if isinstance(part, LowRank)]
        config = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets,
                                 modules_to_save=[head_name(engine.module)])  # fmt: skip
        names = [f"client{number}" for number in range(engine.data.clients)]
        module = peft.get_peft_model(base, config, adapter_name=names[0])
        for name in names[1:]:
            module.add_adapter(name, config)
        choose = module.set_adapter
    else:
        module, names = copy.deepcopy(engine.module), [""] * engine.data.clients
        choose = str
    module.to(device).train()
    for name, loader in zip(names, loaders(engine), strict=True):
        choose(name)
        own = [value for value in module.parameters() if value.requires_grad]
        clients.append((name, torch.optim.SGD(own, lr=0.01), loader))

    def epoch() -> None:
        for name, optimiser, loader in clients:
            choose(name)
            for x, y in loader:
                optimiser.zero_grad()
                F.cross_entropy(module(x.to(device)), y.to(device)).backward()
                optimiser.step()

    return epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--targets", default="", help="layers, such as query,value; default: all")
    parser.add_argument("--chunk", type=int, help="clients trained together; default: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    targets = tuple(filter(None, given.targets.split(",")))
    lora, base = Lora(rank=given.rank, targets=targets), bert(given.width, given.layers)
    network = copy.deepcopy(base)
    x = np.random.default_rng(0).integers(0, VOCABULARY, (given.clients * (SAMPLES + 1), LENGTH))
    engine = engine_on(adapted(network, lora, head_name(network)), x, given.clients, BATCH, given.device)
    whole = sum(value.numel() for value in base.parameters())
    own = sum(value.numel() for value in trainable(engine.module).values())
    print(f"{whole:,} parameters frozen or replaced, {own:,} of each of {given.clients} clients, rank {given.rank}")
    vectorised = epoch_in_chunks(engine, given.chunk or given.clients)
    for _ in range(12):  # until the step is recorded
        vectorised()
    if given.device == "cuda":
        torch.cuda.synchronize()
        needed = 4 * (whole + given.clients * own)
        memory = {"between epochs": torch.cuda.memory_allocated(), "peak": torch.cuda.max_memory_reserved()}
        for what, taken in memory.items():
            print(f"{what} {taken / 2**20:,.0f} MiB, base and adapters {needed / 2**20:,.0f}: {taken / needed:.2f}x")
    plain = plain_epoch(engine, base, lora)
    fast, slow = race(vectorised, plain, given.seconds, given.device)
    steps = SAMPLES // BATCH
    kind = "peft" if importlib.util.find_spec("peft") else "this library's modules"
    engine_ms, plain_ms = fast / steps * 1e3, slow / steps * 1e3
    print(f"a step: engine {engine_ms:.1f} ms, plain loop ({kind}) {plain_ms:.1f} ms, {slow / fast:.1f}x")


if __name__ == "__main__":
    main()
