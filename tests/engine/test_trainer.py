"""The vectorised engine against its specification, the plain loop."""

import copy
import dataclasses
import importlib.util

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from feddwa.data.federated import FederatedData
from feddwa.engine import Engine, SequentialTrainer, Settings, Trainer, evaluate, keys
from feddwa.engine.engine import calls
from feddwa.engine.fast import program, stacked_conv, stacked_norm, stacked_pool
from feddwa.engine.fast.record import record
from feddwa.engine.memory import rows_that_fit
from feddwa.engine.network import descend, label_loss
from feddwa.engine.rows import repeat, take, take_parts, tensors
from feddwa.errors import InputError
from feddwa.models.paper import Residual
from tests.conftest import NETWORKS, SIZES, conv_net, plain_net, small_data
from tests.test_frozen import half_frozen, head_only

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


def make_engine(network, dtype=torch.float64, data: FederatedData | None = None, **settings) -> Engine:
    settings = {"epochs": 2, "batch_size": 10, "lr": 0.1, **settings}
    return Engine(network(), data or small_data(), Settings(**settings), dtype=dtype)


def start(engine: Engine, clients: int = len(SIZES)):
    parameters, buffers = engine.initial()
    return repeat(parameters, clients), {"buffers": repeat(buffers, clients)}


def relative_error(left, right) -> float:
    pairs = zip(tensors(left), tensors(right), strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) for (_, a), (_, b) in pairs)


def train(trainer_class, engine, rounds=3, ids=None, **options):
    ids = torch.arange(len(SIZES)) if ids is None else ids
    model, memory = start(engine, len(ids))
    for round in range(1, rounds + 1):
        model, memory = trainer_class(engine, ids, round).sgd(model, memory, **options)
    return {"model": model, **memory}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("network", NETWORKS)
def test_three_rounds_agree_with_the_plain_loop(network, dtype):
    engine = make_engine(NETWORKS[network], dtype)
    vectorised, sequential = train(Trainer, engine), train(SequentialTrainer, engine)
    assert relative_error(vectorised, sequential) < TOLERANCE[dtype]
    assert relative_error(vectorised, {"model": start(engine)[0], **start(engine)[1]}) > 1e-3  # it did train


def test_recorded_and_eager_runs_are_the_same_to_the_bit(monkeypatch):
    monkeypatch.setattr("feddwa.engine.fast.program.RECORD_AFTER", {"cpu": 10**9})
    eager = train(Trainer, make_engine(conv_net, torch.float32))
    monkeypatch.setattr("feddwa.engine.fast.program.RECORD_AFTER", {"cpu": 0})
    recorded = train(Trainer, make_engine(conv_net, torch.float32))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(tensors(eager), tensors(recorded), strict=True))


def residual_net() -> nn.Module:
    """Convolutions without bias, one with a stride, and a sum, as ResNet-8 has them."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    block = Residual(nn.Sequential(nn.Conv2d(4, 6, 3, 2, padding=1, bias=False), nn.BatchNorm2d(6)), 4, 6, 2)
    return nn.Sequential(body, block, nn.Flatten(), nn.Linear(96, 10))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize("network", [conv_net, residual_net, half_frozen])
def test_the_kernels_of_a_gpu_agree_with_the_plain_loop(network, monkeypatch):
    """The whole step as a GPU has it, recorded, its kernels run by Triton's interpreter."""
    ids, engine = torch.tensor([0, 2, 5]), make_engine(network, torch.float32, epochs=1)
    sequential = train(SequentialTrainer, engine, 1, ids)
    plain = evaluate(engine, sequential["model"], sequential["buffers"], ids)
    for module in (stacked_conv, stacked_pool, stacked_norm, keys, program):
        monkeypatch.setattr(module, "implementation", lambda x: "kernels")
    monkeypatch.setitem(program.RECORD_AFTER, "cpu", 0)
    recorded = []
    make_in_place = program.make_in_place
    monkeypatch.setattr(
        program, "make_in_place", lambda module, fused: recorded.append(make_in_place(module, True)) or module
    )
    trained = train(Trainer, engine, 1, ids)
    assert relative_error(trained, sequential) < TOLERANCE[torch.float32]
    targets = [str(node.target) for module in recorded for node in module.graph.nodes]
    assert {"aten.baddbmm_.default", "feddwa.batch_norm.default"} <= set(targets)
    assert ("feddwa.uniform.default" in targets) == (network is conv_net)
    assert "aten._foreach_add_.Scalar" in targets  # counts in one call, and updates in another
    assert "aten.add_.Tensor" not in targets
    engine.scorers.clear()
    for _ in range(2):  # run and recorded
        scores = evaluate(engine, trained["model"], trained["buffers"], ids)
        assert torch.allclose(scores.loss, plain.loss, rtol=1e-4)


def test_the_plain_loop_is_what_a_textbook_loop_does():
    """The specification itself against twenty lines that use nothing of the engine but the batch order."""
    engine = make_engine(plain_net, epochs=1)
    result = train(SequentialTrainer, engine, rounds=1)
    for client, size in enumerate(SIZES):
        module = plain_net().double()
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        key = keys.key(0, "train/train", 1, torch.tensor([client]), 0)
        order = keys.permutations(key, torch.tensor([size]))[0]
        rows = engine.data.splits["train"].index[client][order]
        for batch in rows.split(10):
            optimiser.zero_grad()
            F.cross_entropy(module(engine.data.x[batch].double()), engine.data.y[batch]).backward()
            optimiser.step()
        for name, value in module.named_parameters():
            assert torch.equal(value, result["model"][name][client])


@pytest.mark.slow
def test_a_client_trains_the_same_alone_in_part_and_with_everybody():
    engine = make_engine(conv_net)
    everybody = train(Trainer, engine)
    for ids in (torch.tensor([3]), torch.tensor([0, 5, 6])):
        part = train(Trainer, make_engine(conv_net), ids=ids)
        assert relative_error(part, take_parts(everybody, ids)) < 1e-12


@pytest.mark.parametrize("network", NETWORKS)
def test_rows_rounded_up_change_nothing(network, monkeypatch):
    """As on a GPU: rows that are only there to make the shape one that recurs."""
    expected = train(SequentialTrainer, make_engine(NETWORKS[network]))
    monkeypatch.setitem(program.USE_BUCKETS, "cpu", True)
    monkeypatch.setitem(program.RECORD_AFTER, "cpu", 1)
    seen = set()
    run = program.Program._run
    monkeypatch.setattr(
        program.Program, "_run", lambda self, rows, *inputs: seen.add(len(inputs[0])) or run(self, rows, *inputs)
    )
    assert relative_error(train(Trainer, make_engine(NETWORKS[network])), expected) < 1e-9
    assert seen <= {4, 6, 8, 16}


def test_purposes_draw_different_batches_and_masks():
    engine = make_engine(conv_net)
    one, other = train(Trainer, engine, rounds=1), train(Trainer, engine, rounds=1, purpose="guidance")
    assert relative_error(one, other) > 1e-4


def test_arguments_are_left_alone():
    engine = make_engine(conv_net)
    model, memory = start(engine)
    before = copy.deepcopy({"model": dict(model), **{k: dict(v) for k, v in memory.items()}})
    Trainer(engine, torch.arange(len(SIZES)), 1).sgd(model, memory)
    assert all(
        torch.equal(a, b) for (_, a), (_, b) in zip(tensors({"model": model, **memory}), tensors(before), strict=True)
    )


def pull(net, params, batch, anchor):
    """A proximal objective: constants reach it row by row."""
    return net.loss(params, batch) + 0.5 * sum((params[name] - anchor[name]).square().sum() for name in params)


def inner_loop(client, state, batch):
    """Two models and three gradients a step, as pFedMe has them."""
    theta = state["theta"]
    for _ in range(3):
        theta = descend(theta, client.gradient(theta, batch), 0.05)
    moved = {name: value + 0.1 * (theta[name] - value) for name, value in state["model"].items()}
    return {"model": moved, "theta": theta}


def meta_step(client, state, batch):
    """The gradient at a point one step ahead, on the other half of the batch."""
    half = max(1, len(batch.y) // 2)
    first, second = (type(batch)(*(part[s] for part in batch)) for s in (slice(half), slice(-half, None)))
    ahead = descend(state["model"], client.gradient(state["model"], first), 0.05)
    return {"model": descend(state["model"], client.gradient(ahead, second), 0.05)}


def _read_later_through_a_view(old, new):
    copy = old.clone()
    seen = copy.view(-1)
    copy.copy_(new * 2)
    return [seen + 1, copy]


def _written_through_a_view(old, new):
    copy = old.clone()
    copy.view(-1).add_(1)
    return [copy + 0, copy.copy_(new * 2)]


def _source_written_later(old, new):
    copy, source = old.clone(), new * 2
    copy.copy_(source)
    return [copy, source.add_(1)]


def _copy_written_later(old, new):
    copy, source = old.clone(), new * 2
    copy.copy_(source).add_(1)
    return [copy, source + 0]


def _counted_twice(old, new):
    copy = old.clone()
    copy.add_(1)
    return [copy, copy.add_(new)]


def _counted_after_it_was_read(old, new):
    copy = old.clone()
    seen = copy * new
    return [copy.add_(1), seen]


def _product_written_later(old, new):
    product = torch.ops.aten.mul.Scalar(old, 1)
    return [product.add_(new), old + 0]


@pytest.mark.parametrize(
    "function",
    [
        _read_later_through_a_view,
        _written_through_a_view,
        _source_written_later,
        _copy_written_later,
        _counted_twice,
        _counted_after_it_was_read,
        _product_written_later,
    ],
)
def test_what_is_written_is_recorded_as_it_is(function):
    """What a recording leaves out must not be seen."""
    inputs = torch.arange(4.0), torch.arange(4.0) + 10
    expected = [value.clone() for value in function(*(value.clone() for value in inputs))]
    module = record(function, [value.clone() for value in inputs])
    for _ in range(2):
        own = [value.clone() for value in inputs]
        assert all(torch.equal(a, b) for a, b in zip(module(*own), expected, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(own, inputs, strict=True))


def test_labels_that_are_all_there_need_no_mask():
    outputs, y = torch.randn(6, 5), torch.tensor([0, 4, 2, 2, 1, 3])
    assert torch.allclose(label_loss(outputs, y), F.cross_entropy(outputs, y))
    data = small_data()
    assert make_engine(plain_net, data=data).mapped_loss is label_loss
    missing = dataclasses.replace(data, y=data.y.masked_fill(data.y == 0, -100))
    assert make_engine(plain_net, data=missing).mapped_loss is F.cross_entropy
    engine = make_engine(plain_net, data=missing)
    assert relative_error(train(Trainer, engine), train(SequentialTrainer, engine)) < 1e-9


def test_federations_in_lockstep_share_the_memory(monkeypatch):
    monkeypatch.setattr("feddwa.engine.memory.free_bytes", lambda device: 10**8)
    engine = make_engine(plain_net)
    alone = rows_that_fit(engine)
    assert alone > 3
    assert rows_that_fit(dataclasses.replace(engine, lockstep=3)) == alone // 3


@pytest.mark.slow
@pytest.mark.parametrize("trainer_class", [Trainer, SequentialTrainer])
def test_parameters_that_stand_still_are_constants_of_the_others_training(trainer_class):
    """Against torch's optimiser on a module of which that part alone is trained; dropout and BatchNorm included."""
    engine = make_engine(conv_net)
    model, memory = start(engine)
    head = {name: value for name, value in model.items() if name.startswith("9.")}
    body = {name: value + 0.01 for name, value in model.items() if name not in head}
    alone = make_engine(head_only)
    for name, value in body.items():
        alone.module.get_parameter(name).data.copy_(value[0])
    trainer, other = (trainer_class(each, torch.arange(len(SIZES)), 1) for each in (engine, alone))
    moved, after = trainer.sgd(head, memory, fixed=body)
    expected, buffers = other.sgd(head, memory)
    assert moved.keys() == head.keys()
    assert relative_error({"model": moved, **after}, {"model": expected, **buffers}) < 1e-12
    assert torch.equal(trainer.flops, other.flops)
    whole = trainer_class(engine, torch.arange(len(SIZES)), 1)
    whole.sgd({**body, **head}, memory)
    assert (trainer.flops < 0.7 * whole.flops).all()
    trainer.sgd(body, memory, fixed=head)  # the same step on other parameters is counted anew
    assert (trainer.flops > 1.5 * other.flops).all()


@pytest.mark.parametrize("network", NETWORKS)
def test_objectives_with_constants_agree_with_the_plain_loop(network):
    engine = make_engine(NETWORKS[network])
    anchors = {
        name: value + 0.1 * torch.randn(len(SIZES), *value.shape[1:]) for name, value in start(engine)[0].items()
    }
    results = [train(kind, engine, rounds=2, objective=pull, anchor=anchors) for kind in (Trainer, SequentialTrainer)]
    assert relative_error(*results) < 1e-9
    assert relative_error(results[0], train(Trainer, engine, rounds=2)) > 1e-3


@pytest.mark.parametrize("step", [inner_loop, meta_step])
@pytest.mark.parametrize("network", NETWORKS)
def test_any_step_agrees_with_the_plain_loop(network, step):
    engine = make_engine(NETWORKS[network], epochs=1)
    results = []
    for kind in (Trainer, SequentialTrainer):
        model, memory = start(engine)
        state = {"model": model, "theta": model} if step is inner_loop else {"model": model}
        for round in (1, 2):
            state, memory = kind(engine, torch.arange(len(SIZES)), round).train(step, state, memory)
        results.append({**state, **memory})
    assert relative_error(*results) < 1e-9


def test_a_finished_client_costs_nothing_and_no_batch_is_padded():
    sizes = sorted(SIZES, key=lambda size: -(size // 10))
    index = torch.arange(len(sizes) * 82).reshape(len(sizes), 82)
    seen = {row: [] for row in range(len(sizes))}
    for rows, samples, key in calls(index, torch.zeros(len(sizes), dtype=torch.int64), sizes, 10):
        chosen = list(range(rows)) if isinstance(rows, int) else rows.tolist()
        assert len(chosen) == len(samples) == len(key)
        for row, own in zip(chosen, samples.tolist(), strict=True):
            seen[row].append(own)
    for row, size in enumerate(sizes):
        flat = [sample for batch in seen[row] for sample in batch]
        assert flat == index[row, :size].tolist()  # every sample once, in order, nothing else
        assert [len(batch) for batch in seen[row]] == [10] * (size // 10) + [size % 10] * (size % 10 > 0)


def test_flops_are_counted_per_client():
    engine = make_engine(plain_net, epochs=1)
    trainer = Trainer(engine, torch.arange(len(SIZES)), 1)
    trainer.sgd(*start(engine))
    forward = 2 * (64 * 12 + 12 * 10)  # two FLOPs per multiply-add
    backward = 2 * forward - 2 * 64 * 12  # the first layer's input needs no gradient
    assert trainer.flops.tolist() == [size * (forward + backward) for size in SIZES]


def test_byte_images_are_normalised_on_the_device():
    data = small_data()
    values = (data.x - data.x.min()) / (data.x.max() - data.x.min())
    from feddwa.data.dataset import Dataset
    from feddwa.data.federated import federate
    from feddwa.data.partition import Partition

    pixels = (values * 255).to(torch.uint8).numpy()
    dataset = Dataset("bytes", pixels, data.y.numpy(), 10, 10, mean=(0.4,), std=(0.25,))
    made = federate(dataset, Partition([torch.arange(10).numpy()], [torch.arange(10, 20).numpy()]), torch.device("cpu"))
    batch = made.batch(torch.tensor([[3, 4]]), torch.float64)
    assert torch.allclose(batch.x[0], (torch.from_numpy(pixels[[3, 4]]).double() / 255 - 0.4) / 0.25, atol=1e-12)


def test_one_sample_and_plain_batchnorm_agree_with_torch():
    """torch refuses to normalise a single value per channel; so do both backends, with the same error."""
    engine = make_engine(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4)), data=small_data((11, 1))
    )
    for kind in (Trainer, SequentialTrainer):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            kind(engine, torch.arange(2), 1).sgd(*start(engine, 2))


def test_random_layers_without_a_key_are_refused():
    engine = make_engine(lambda: nn.Sequential(nn.Flatten(), nn.RReLU(), nn.Linear(64, 10)))
    with pytest.raises(InputError, match="draws its own random numbers"):
        Trainer(engine, torch.arange(len(SIZES)), 1).sgd(*start(engine))


def test_dropout_keeps_the_right_share_and_scale():
    from feddwa.engine.functions import KeyedFunctions

    for layer, distinct in ((F.dropout, 40 * 30 * 6), (F.dropout2d, 40 * 30)):
        with KeyedFunctions(keys.key(0, "mask")):
            out = layer(torch.ones(40, 30, 3, 2), 0.3, training=True)
        assert out.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
        kept = (out > 0).double().mean()
        assert abs(kept - 0.7) < 4 * (0.21 / distinct) ** 0.5
        if layer is F.dropout2d:
            assert ((out > 0).flatten(2).double().mean(2) % 1 == 0).all()  # whole channels


def test_take_copies():
    rows = {"w": torch.zeros(3, 2)}
    take(rows, torch.tensor([1]))["w"].add_(1)
    assert not rows["w"].any()
