"""Special cases of methods about the head and its features."""

import pytest
import torch
from torch import nn

from feddwa.algorithms import GPFL, FedAS, FedCP, FedPer
from feddwa.algorithms.fedcp import WIDTHS
from feddwa.algorithms.mmd import squared_distances, squared_mmd
from feddwa.engine import Trainer
from feddwa.engine.batches import Batches
from feddwa.engine.network import added
from feddwa.engine.rows import repeat
from feddwa.errors import InputError
from tests.algorithms.conftest import after, difference, equal, federation, models
from tests.conftest import conv_net, plain_net, small_data

SIZES = (20, 30, 12)


def relabelled(rows):
    """Small data whose client i has the classes rows[i] in turn."""
    data = small_data(SIZES)
    for split in data.splits.values():
        for client, classes in enumerate(rows):
            own = split.index[client, : split.sizes[client]]
            data.y[own] = torch.tensor(classes).repeat(len(own))[: len(own)]
    return data


def test_a_clients_condition_is_the_mean_embedding_under_its_own_labels():
    """Of one class: that class's embedding. Of all alike: the generic condition."""
    made = federation(GPFL(), plain_net, relabelled([[3], range(10), [0, 1]]))
    after(made, 2)
    layers, classes = added(models(made)["model"]), made.server["model"]["3.added_layers.embeddings"]
    expected = torch.stack([classes[3], classes.mean(0), classes[:2].mean(0)])
    torch.testing.assert_close(layers["condition"], expected)
    assert torch.equal(layers["embeddings"][0], classes)


def test_heads_and_conditions_do_not_cross():
    made = federation(GPFL(), conv_net)
    after(made, 1)
    assert {name for name in made.server["model"] if name.startswith("9")} == {
        f"9.added_layers.{name}" for name in added(made.engine.initial()[0]) if name != "condition"
    }
    heads = models(made)["model"]["9.linear.weight"]
    assert not torch.equal(heads[0], heads[1])


def test_mu_shrinks_embeddings_and_nothing_else_does():
    """A gradient of cosines is orthogonal to the vectors, so that its steps lengthen them; the pull moves features."""
    ends = {}
    for mu in (0.0, 0.5):
        made = federation(GPFL(lam=0.0, mu=mu), plain_net, small_data(SIZES), lr=0.01)
        after(made, 1)
        ends[mu] = made.server["model"]["3.added_layers.embeddings"].norm()
    start = added(made.engine.initial()[0])["embeddings"].norm()
    assert ends[0.0] >= start
    assert ends[0.5] < 0.995 * start


def test_a_strong_pull_brings_generic_features_to_the_embeddings_of_their_classes():
    """Measured where it acts: the distance of routed features from the downloaded embeddings falls."""

    def distance(made):
        model = {name: value[0] for name, value in models(made)["model"].items()}
        layers, module, data = added(model), made.engine.module, made.engine.data
        own = data.splits["train"].index[0, : SIZES[0]]
        x = data.x[own].double()
        body = torch.func.functional_call(module[:3], {name: model[name] for name in ("1.weight", "1.bias")}, (x,))
        routed = torch.func.functional_call(
            module[3].added_layers, dict(layers), (body, layers["embeddings"].mean(0, keepdim=True))
        )
        return (routed - layers["embeddings"][data.y[own]]).norm()

    near, far = (federation(GPFL(lam, 0.0), plain_net, small_data(SIZES), lr=0.02) for lam in (2.0, 0.0))
    for made in (near, far):
        after(made, 5)
    assert distance(near) < 0.9 * distance(far)


class Scaled(nn.Module):
    """Its outputs are not those of its last linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.head(x.flatten(1))


@pytest.mark.parametrize("algorithm", [GPFL(), FedAS(), FedCP()])
def test_networks_whose_outputs_are_not_those_of_the_last_linear_layer_are_refused(algorithm):
    name = type(algorithm).__name__.lower()
    with pytest.raises(InputError, match=f"algorithm {name}: needs a network whose outputs are those of its last"):
        federation(algorithm, Scaled)
    with pytest.raises(InputError, match=f"algorithm {name}: needs a network whose (last layer is an nn|outputs are)"):
        federation(algorithm, lambda: nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()))


def test_fedas_without_alignment_and_fisher_weights_is_fedper():
    """After training, and in what is shared: FedAS is evaluated with what its clients have trained last."""
    found, expected = (federation(each, conv_net) for each in (FedAS(0, weights="size"), FedPer()))
    for _ in range(3):
        one, other = found.step(), expected.step()
        assert torch.equal(one.after.loss, other.after.loss)
        assert equal({"model": found.server["model"]}, {"model": expected.server["model"]})


def test_alignment_at_a_rate_of_zero_moves_nothing():
    found, expected = (federation(FedAS(epochs, rate, "size"), plain_net) for epochs, rate in ((2, 0.0), (0, 0.1)))
    assert equal(after(found, 3), after(expected, 3))


def test_a_client_is_evaluated_with_the_model_of_its_last_training():
    made = federation(FedAS(), conv_net, small_data(SIZES), participation=0.67)
    start = made.engine.initial()[0]
    own = repeat(start, len(SIZES))
    for _ in range(3):
        seen = made.step()
        absent = [i for i in range(len(SIZES)) if i not in seen.cohort.ids]
        model = models(made)["model"]
        assert all(torch.equal(value[absent], own[name][absent]) for name, value in model.items())
        assert torch.equal(seen.after.loss, made.scores.loss[seen.cohort.ids])
        own = model


def test_bodies_are_weighed_by_the_squares_of_their_gradients():
    """Against autograd, batch by batch, in evaluation mode: dropout is off, BatchNorm has the client's statistics."""
    made = federation(FedAS(), conv_net, small_data((20, 20, 20)))
    weights = made.step().info["weights"]
    model, module, taus = models(made), made.engine.module.eval(), []
    for client in range(3):
        trainer = Trainer(made.engine, torch.tensor([client]), 1)
        order = Batches(trainer.engine, trainer.ids, trainer.round).order("train", "fisher", 0)[0][0]
        leaves = {name: value[client].clone().requires_grad_() for name, value in model["model"].items()}
        state = {**leaves, **{name: value[client] for name, value in model["buffers"].items()}}
        taus.append(0.0)
        for rows in order[:20].split(10):
            x, y = made.engine.data.batch(rows, torch.float64)
            loss = nn.functional.cross_entropy(torch.func.functional_call(module, state, (x,)), y)
            taus[-1] += sum(float(g.square().sum()) for g in torch.autograd.grad(loss, list(leaves.values())))
    expected = torch.tensor(taus, dtype=torch.float64)
    torch.testing.assert_close(weights[0], expected / expected.sum())


def test_one_participant_has_all_the_weight_and_gradients_of_zero_count_equally():
    made = federation(FedAS(), plain_net, small_data(SIZES), participation=0.34)
    assert made.step().info["weights"].tolist() == [[1.0]]
    made = federation(FedAS(), plain_net, small_data(SIZES))
    everybody = made.all_clients()
    body = repeat({name: value for name, value in made.engine.initial()[0].items() if name != "3.weight"}, 3)
    upload = {"model": body, "fisher": {"tau": torch.zeros(3, dtype=torch.float64)}}
    assert made.algorithm.server(made.server, everybody, upload)[1]["weights"][0].tolist() == pytest.approx([1 / 3] * 3)


def split_head(made, features):
    """The layers that FedCP adds to a linear layer of a federation's network, and that layer."""
    head = made.engine.module[3]
    return head.added_layers, head.linear, torch.randn(6, features, dtype=torch.float64)


def test_fedcps_initial_heads_are_one_whose_bias_counts_twice_whatever_the_gate_says():
    made = federation(FedCP(), plain_net)
    _, linear, z = split_head(made, 12)
    torch.testing.assert_close(made.engine.module[3].eval()(z), linear(z) + linear.bias)


def test_a_gate_without_weights_gives_each_head_one_half():
    layers, linear, z = split_head(federation(FedCP(), plain_net), 12)
    with torch.no_grad():
        layers.generic.weight.mul_(3)
        for value in layers.gate.parameters():
            value.zero_()
        expected = nn.functional.linear(z / 2, linear.weight + layers.generic.weight, linear.bias + layers.generic.bias)
        torch.testing.assert_close(layers.eval().outputs(z, linear), expected)


def test_lambda_has_no_effect_in_the_first_step_of_a_round_without_dropout():
    """Then features are those of the downloaded body. With a second step it has."""
    first, later = (
        [federation(FedCP(lam), plain_net, small_data(sizes)) for lam in (0.0, 5.0)] for sizes in ((10, 8), (20, 20))
    )
    for two, alike in ((first, True), (later, False)):
        ends = [after(made, 1) for made in two]
        assert (difference(*ends) < 1e-12) is alike


def test_what_the_server_gets_of_a_head_is_its_mean_with_the_generic_one():
    made = federation(FedCP(), plain_net, small_data((20,)))  # one client, so that the server's is its upload
    start = made.engine.initial()[0]["3.linear.weight"]
    made.step()
    own = models(made)["model"]["3.linear.weight"][0]
    torch.testing.assert_close(made.server["model"]["3.added_layers.generic.weight"], (own + start) / 2)
    assert not [name for name in made.server["model"] if "linear" in name or "context" in name]


def test_the_model_after_training_has_the_generic_head_of_its_round():
    made = federation(FedCP(), plain_net, small_data(SIZES))
    message = made.server_side.download(made.server, made.all_clients())
    sent, memory, _ = made.client_side.train(made.all_clients().ids, 1, message, made.memory)
    found = made.algorithm.trained(sent, memory)
    for name in ("weight", "bias"):
        torch.testing.assert_close(
            found[f"3.added_layers.generic.{name}"], message["model"][f"3.added_layers.generic.{name}"]
        )
    total = found["3.linear.weight"].sum(1)
    torch.testing.assert_close(found["3.added_layers.context"], total / total.norm(dim=1, keepdim=True))


def test_far_features_are_not_pulled():
    """All kernels have vanished: MMD^2 is at its ceiling, 8 / B."""
    x = torch.randn(5, 4, dtype=torch.float64)
    far = squared_mmd(squared_distances(1e3 * x, 1e3 * x.flip(0) + 500), WIDTHS)
    assert float(far) == pytest.approx(8 / 5)
    assert float(squared_mmd(squared_distances(x, x), WIDTHS)) == pytest.approx(0, abs=1e-12)
