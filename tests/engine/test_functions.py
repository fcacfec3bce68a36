"""Functions of torch in their stacked forms, with parameters per client, against torch's own, one client at a time."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feddwa.engine import keys
from feddwa.engine.fast import stacked_conv
from feddwa.engine.functions import KeyedFunctions, StackedFunctions, weights_as_given
from tests.engine.test_stacked import EXACT, IMPLEMENTATIONS, close

CLIENTS = 3


def total(outputs: object) -> Tensor:
    """A number that depends on every entry of nested outputs."""
    if isinstance(outputs, Tensor):
        return outputs.sin().sum()
    return sum(total(part) for part in outputs)  # type: ignore[attr-defined, return-value, misc]


def compare(net: nn.Module, *shapes: tuple[int, ...], dtype=torch.float64, operations: int = 20) -> None:
    """Value and all gradients of clients with parameters and inputs of their own: mapped, and by plain autograd."""
    torch.manual_seed(1)
    net = net.to(dtype)
    rows = {
        name: value.detach() + 0.1 * torch.randn(CLIENTS, *value.shape, dtype=dtype)
        for name, value in net.named_parameters()
    }
    inputs = [torch.randn(CLIENTS, *shape, dtype=dtype) for shape in shapes]
    noise = keys.key(0, "noise", torch.arange(CLIENTS))

    def one(key, params, *inputs):
        def loss(params, *inputs):
            with StackedFunctions(key), weights_as_given(net):
                return total(torch.func.functional_call(net, params, inputs))

        return torch.func.grad_and_value(loss, argnums=tuple(range(1 + len(inputs))))(params, *inputs)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There is a performance drop")
        grads, values = torch.vmap(one)(noise, rows, *inputs)
    for client in range(CLIENTS):
        leaves = {name: value[client].clone().requires_grad_() for name, value in rows.items()}
        own = [value[client].clone().requires_grad_() for value in inputs]
        with KeyedFunctions(noise[client]):
            value = total(torch.func.functional_call(net, leaves, tuple(own)))
        value.backward()
        assert close(values[client], value.detach(), operations)
        for name, leaf in leaves.items():
            assert close(grads[0][name][client], leaf.grad, operations), name
        for mine, leaf in zip(grads[1:], own, strict=True):
            assert close(mine[client], leaf.grad, operations)


class WithState(nn.Module):
    """A recurrent layer whose first state is an input."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x, *states):
        return self.layer(x, states if len(states) > 1 else states[0])


RECURRENT = {nn.LSTM: {}, nn.GRU: {}, nn.RNN: {"nonlinearity": "tanh"}}
OPTIONS = [
    {},
    {"bias": False, "batch_first": True},
    {"num_layers": 3, "dropout": 0.3},
    {"num_layers": 2, "bidirectional": True, "dropout": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers(kind, options):
    compare(kind(3, 4, **options), (5, 2, 3))


@pytest.mark.parametrize("layer", [
    nn.RNN(3, 4, 2, nonlinearity="relu"), nn.LSTM(3, 4, 2, proj_size=2, bidirectional=True),
    nn.LSTM(3, 4, proj_size=2, bias=False),
], ids=str)  # fmt: skip
def test_recurrent_layers_with_options_of_their_own(layer):
    compare(layer, (5, 2, 3))


def test_recurrent_layers_from_given_states_and_without_a_batch():
    compare(WithState(nn.LSTM(3, 4, 2)), (5, 2, 3), (2, 2, 4), (2, 2, 4))
    compare(WithState(nn.GRU(3, 4, bidirectional=True, batch_first=True)), (2, 5, 3), (2, 2, 4))
    compare(nn.RNN(3, 4), (5, 3))


@pytest.mark.parametrize("cell", [nn.LSTMCell(3, 4), nn.GRUCell(3, 4, bias=False), nn.RNNCell(3, 4)], ids=str)
def test_recurrent_cells(cell):
    compare(cell, (2, 3))


def test_frozen_recurrent_weights_are_shared_by_all_clients():
    layer = nn.LSTM(3, 4).double()
    x = torch.randn(CLIENTS, 5, 2, 3, dtype=torch.float64)

    def one(x):
        with StackedFunctions(keys.key(0, "x")), weights_as_given(layer):
            return layer(x)[0].sin().sum()

    for mine, own in zip(torch.vmap(torch.func.grad(one))(x), x, strict=True):
        leaf = own.clone().requires_grad_()
        layer(leaf)[0].sin().sum().backward()
        assert close(mine, leaf.grad)


CONVOLUTIONS = [
    nn.Conv1d(4, 6, 3, padding=1), nn.Conv1d(4, 6, 4, padding="same", dilation=3), nn.Conv1d(4, 8, 3, 2, groups=2),
    nn.Conv1d(4, 6, 3, padding=2, padding_mode="circular"), nn.Conv1d(4, 4, 3, groups=4, bias=False),
    nn.Conv2d(4, 6, 1), nn.Conv2d(4, 8, (3, 2), groups=2, padding="same"), nn.Conv2d(4, 4, 3, 2, 1, groups=4),
    nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=4), nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"),
    nn.Conv2d(4, 6, 1, groups=2, bias=False), nn.Conv2d(4, 6, 3, padding="valid"),
    nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), nn.ConvTranspose1d(4, 6, 2, groups=2),
    nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1), nn.ConvTranspose2d(4, 6, (2, 3), groups=2, dilation=(1, 2)),
    nn.ConvTranspose2d(4, 4, 2, 2, groups=4, bias=False),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch's own, alone
@pytest.mark.parametrize("chosen", IMPLEMENTATIONS)
@pytest.mark.parametrize("layer", CONVOLUTIONS, ids=str)
def test_convolutions_with_all_options(layer, chosen, monkeypatch):
    """Also the implementations for a GPU: on any machine, the kernels by Triton's interpreter."""
    monkeypatch.setattr(stacked_conv, "implementation", lambda x: chosen)
    shape = (2, 4, 7) if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d) else (2, 4, 6, 5)
    compare(layer, shape, dtype=EXACT[chosen])
    layer.to(torch.float32)


def test_convolutions_of_volumes_and_of_single_samples():
    compare(nn.Conv3d(2, 4, 2, groups=2, padding=1), (2, 2, 3, 4, 3))
    compare(nn.ConvTranspose3d(2, 3, 2), (2, 2, 2, 3, 2))
    compare(nn.Conv1d(2, 3, 2), (2, 5))
    compare(nn.Conv2d(2, 3, 2), (2, 5, 4))


class Attention(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.options = options

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, **self.options)


MASK = torch.tensor([[True, False, True], [False, False, False], [True, True, True], [False, True, False]])
ATTENTION = {
    "plain": {}, "mask": {"attn_mask": MASK}, "added": {"attn_mask": torch.randn(4, 3, dtype=torch.float64)},
    "scale": {"scale": 0.3}, "causal": {"is_causal": True},
}  # fmt: skip


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name, dropout):
    compare(Attention(dropout_p=dropout, **ATTENTION[name]), (2, 2, 4, 5), (2, 2, 3, 5), (2, 2, 3, 6))


def test_attention_of_grouped_queries():
    compare(Attention(enable_gqa=True), (2, 4, 4, 5), (2, 2, 3, 5), (2, 2, 3, 5))


class SelfAttention(nn.Module):
    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.layer, self.need_weights = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True), need_weights

    def forward(self, x):
        out, weights = self.layer(x, x, x, need_weights=self.need_weights)
        return (out, weights) if self.need_weights else out


@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention_with_dropout(need_weights):
    compare(SelfAttention(need_weights), (2, 5, 8))


@pytest.mark.parametrize("training", [True, False])
def test_transformer_layers(training):
    """In evaluation torch would take a path of its own, which cannot be mapped."""
    compare(nn.TransformerEncoderLayer(8, 2, 16, 0.3, batch_first=True).train(training), (2, 5, 8))
    compare(nn.TransformerDecoderLayer(8, 2, 16, 0.3).train(training), (4, 2, 8), (5, 2, 8))


def test_attention_drops_weights_at_the_rate_that_is_asked_for():
    with KeyedFunctions(keys.key(0, "mask")):
        ones = F.scaled_dot_product_attention(
            *[torch.ones(50, 8, 16, 16)] * 2, torch.eye(16).expand(50, 8, 16, 16), None, 0.3
        )
    dropped = (ones == 0).double().mean()  # (.., L, S): the weights themselves, each 1/16 or 0
    assert abs(dropped - 0.3) < 0.01
    assert torch.allclose(ones[ones > 0], torch.tensor(1 / 16 / 0.7))


@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_softmax_by_client(hard):
    compare(Of(lambda x: F.gumbel_softmax(x, 0.7, hard, dim=1)), (4, 3, 5))


def test_gumbel_softmax_chooses_as_often_as_the_softmax_says():
    logits = torch.tensor([0.3, -1.0, 1.2])
    with KeyedFunctions(keys.key(0, "noise")):
        hard = F.gumbel_softmax(logits.expand(40_000, 3), hard=True)
        soft = F.gumbel_softmax(logits.expand(40_000, 3).double(), tau=0.01)
    assert hard.sum(1).unique().tolist() == [1]
    assert (hard.mean(0) - logits.softmax(0)).abs().max() < 0.01
    assert (soft.mean(0) - logits.softmax(0)).abs().max() < 0.01


@pytest.mark.parametrize("function", [F.alpha_dropout, F.feature_alpha_dropout])
def test_alpha_dropout_keeps_mean_and_variance(function):
    x = torch.randn(200, 300, 4, generator=torch.Generator().manual_seed(0))
    with KeyedFunctions(keys.key(0, "mask")):
        out = function(x, 0.2, training=True)
        assert function(x, 0.2) is x  # torch's default is not to train
    assert abs(out.mean()) < 0.02
    assert abs(out.var() - 1) < 0.02
    dropped = out == out.flatten().mode().values  # all of them become one value
    assert abs(dropped.double().mean() - 0.2) < 0.01
    assert function is F.alpha_dropout or (dropped.double().mean(2) % 1 == 0).all()  # whole channels


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def as_tokens(x: Tensor) -> Tensor:
    """Whole numbers below 9 from any floats."""
    return (x.detach().abs() * 3).long().clamp(max=8)


LAYERS = {
    "avg pool": nn.AvgPool2d(2), "adaptive max": nn.AdaptiveMaxPool2d(2), "adaptive avg": nn.AdaptiveAvgPool2d((2, 3)),
    "sequence": nn.Sequential(nn.Flatten(2), nn.MaxPool1d(2), nn.AvgPool1d(2), nn.AdaptiveMaxPool1d(3)),
    "mean": nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 3, 3), nn.AdaptiveAvgPool1d(1)),
    "layer norm": nn.LayerNorm(5), "group norm": nn.GroupNorm(2, 4), "instance norm": nn.InstanceNorm2d(4, affine=True),
    "hardswish": nn.Hardswish(), "silu": nn.SiLU(), "gelu": nn.GELU(), "hardsigmoid": nn.Hardsigmoid(),
    "nearest": nn.Upsample(scale_factor=2), "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
    "one hot": Of(lambda x: x.unsqueeze(-1) * F.one_hot(as_tokens(x), 9)),
    "masked fill": Of(lambda x: x.masked_fill(x > 0, 0.5)), "where": Of(lambda x: torch.where(x > 0, x, x * x)),
    "flat": Of(lambda x: x.view(x.size(0), -1)), "prelu": nn.PReLU(4), "pixels": nn.PixelShuffle(2),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_usual_networks(name):
    compare(LAYERS[name], (2, 4, 6, 5))


class Words(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(as_tokens(x)) * x.sum()


@pytest.mark.parametrize("layer", [
    nn.Embedding(9, 4), nn.Embedding(9, 4, padding_idx=1), nn.EmbeddingBag(9, 4), nn.EmbeddingBag(9, 4, mode="sum"),
], ids=str)  # fmt: skip
def test_embeddings(layer):
    compare(Words(layer), (2, 5))


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(3, 4, 5)

    def forward(self, left, right):
        return self.layer(left, right)


def test_bilinear_layers():
    compare(Product(), (2, 3), (2, 4))
