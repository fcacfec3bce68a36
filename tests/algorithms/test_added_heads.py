"""Special cases of methods that add layers to the head."""

import pytest
import torch
from torch import nn

from feddwa.algorithms import GPFL
from feddwa.engine.network import added
from feddwa.errors import InputError
from tests.algorithms.conftest import after, federation, models
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
        routed = torch.func.functional_call(module[3].added_layers, dict(layers), (body, layers["embeddings"].mean(0)))
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


@pytest.mark.parametrize("algorithm", [GPFL()])
def test_networks_whose_outputs_are_not_those_of_the_last_linear_layer_are_refused(algorithm):
    name = type(algorithm).__name__.lower()
    with pytest.raises(InputError, match=f"algorithm {name}: needs a network whose outputs are those of its last"):
        federation(algorithm, Scaled)
    with pytest.raises(InputError, match=f"algorithm {name}: needs a network whose last layer is an nn.Linear"):
        federation(algorithm, lambda: nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()))
