"""Methods that make one global model better: SCAFFOLD, FedDyn, FedNova, FedAdagrad, FedAdam, FedYogi."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from feddwa.algorithms import (
    IFCA,
    SCAFFOLD,
    FedAdagrad,
    FedAdam,
    FedALA,
    FedAvg,
    FedDyn,
    FedNova,
    FedProx,
    FedYogi,
    PFedGraph,
)  # fmt: skip
from feddwa.algorithms.fednova import gradient_uses
from feddwa.algorithms.fedopt import FedOpt
from feddwa.algorithms.scaffold import CorrectedStep
from feddwa.data.federated import Batch
from feddwa.engine import Engine, Settings
from feddwa.engine.optimizers import SGD, Adam
from feddwa.engine.rows import zeros
from feddwa.errors import InputError
from feddwa.federation import Federation
from tests.algorithms.conftest import after, difference, federation, models
from tests.conftest import conv_net, map_state, plain_net, small_data

EQUAL, UNEQUAL = (20, 20, 20, 20), (23, 40, 5, 32)


def frozen(algorithm, part):
    """The method whose clients' memory `part` and whose own state of the round are put back to zero."""

    def run(rounds, data):
        made = federation(algorithm, data=data)
        for _ in range(rounds):
            made.step()
            made.memory = {**made.memory, part: map_state(torch.zeros_like, {part: made.memory[part]})[part]}
            made.server = {key: model if key == "model" else zeros(model) for key, model in made.server.items()}
        return made

    return run


def test_scaffold_without_variates_is_fedavg_over_equal_sizes():
    run = frozen(SCAFFOLD(), "control")(3, small_data(EQUAL))
    assert difference(models(run), after(federation(FedAvg(), data=small_data(EQUAL)), 3)) < 1e-12


@pytest.mark.parametrize("option", ["I", "II"])
def test_the_first_round_of_scaffold_is_fedavg_and_the_second_is_not(option):
    ours, plain = (federation(algorithm, data=small_data(EQUAL)) for algorithm in (SCAFFOLD(option=option), FedAvg()))
    assert difference(after(ours, 1), after(plain, 1)) < 1e-12
    assert difference(after(ours, 1), after(plain, 1)) > 1e-3


@pytest.mark.parametrize("option", ["I", "II"])
def test_with_everybody_c_is_the_mean_of_all_c_k(option):
    run = federation(SCAFFOLD(option=option), data=small_data(UNEQUAL))
    for _ in range(3):
        run.step()
        mean = {name: value.mean(0) for name, value in run.memory["control"].items()}
        assert difference({"c": run.server["control"]}, {"c": mean}) < 1e-9
        assert max(float(value.abs().max()) for value in mean.values()) > 1e-3


def test_one_client_alone_corrects_nothing():
    """N = 1: c = c_k, so SCAFFOLD is plain SGD."""
    data = small_data((23,))
    ours, plain = (federation(algorithm, data=data) for algorithm in (SCAFFOLD(), FedAvg()))
    assert difference(after(ours, 3), after(plain, 3)) < 1e-12


@dataclass
class Quadratic:
    """A client whose f(v) = h/2 ||v - target||^2 on every batch."""

    h: float
    target: float

    def gradient(self, params, batch):
        return {"v": self.h * (params["v"] - self.target)}


CLIENTS, STEPS, RATE = (Quadratic(1.0, 0.0), Quadratic(3.0, 2.0)), 5, 0.05
MINIMUM = (1.0 * 0.0 + 3.0 * 2.0) / 4.0


def test_scaffold_ends_at_the_minimum_where_fedavg_stays_away():
    """Of the mean of two quadratics. The other sign of c_k, which a library has, drives it off."""
    step, nothing = CorrectedStep(RATE), Batch(torch.zeros(1), torch.zeros(1))

    def run(sign):
        w, c, own = torch.zeros(1).double(), 0.0, [0.0, 0.0]
        for _ in range(400):
            ends = []
            for k, client in enumerate(CLIENTS):
                state = {"model": {"v": w}}
                for _ in range(STEPS):
                    state = step(client, state, nothing, {"v": torch.tensor([c - own[k]]).double()})
                ends.append(state["model"]["v"])
            mean_gradients = [own[k] - c + float(w - v) / (STEPS * RATE) for k, v in enumerate(ends)]
            own = [sign * value for value in mean_gradients]
            c, w = sum(own) / 2, sum(ends) / 2
        return float(w)

    assert run(1.0) == pytest.approx(MINIMUM, abs=1e-9)
    assert abs(run(0.0) - MINIMUM) > 0.05  # FedAvg
    assert not abs(run(-1.0) - MINIMUM) < 0.05


def test_the_first_round_of_feddyn_leads_the_mean_of_fedprox():
    """h = -alpha (mean - w), so that w is 2 mean - w: as far behind the mean as it was before it."""
    data = small_data(EQUAL)
    ours, plain = federation(FedDyn(alpha=0.3), data=data), federation(FedProx(mu=0.3), data=data)
    start = models(ours)["model"]
    new, mean = after(ours, 1)["model"], after(plain, 1)["model"]
    lead = {name: 2 * mean[name] - start[name] for name in new}
    assert difference({"model": new}, {"model": lead}) < 1e-9


def test_feddyn_without_memory_is_fedprox():
    """g = h = 0: the pull of FedProx alone. h/alpha of a round is taken back from w."""
    data = small_data(EQUAL)
    run, plain = federation(FedDyn(alpha=0.3), data=data), federation(FedProx(mu=0.3), data=data)
    for _ in range(3):
        run.step()
        plain.step()
        mean = {name: w + run.server["drift"][name] / 0.3 for name, w in run.server["model"].items()}
        run.server = {"model": mean, "drift": zeros(mean)}
        run.memory = {**run.memory, "gradient": map_state(torch.zeros_like, {"g": run.memory["gradient"]})["g"]}
    assert difference({"model": run.server["model"]}, {"model": plain.server["model"]}) < 1e-9


def test_with_everybody_h_is_the_mean_of_all_g_k():
    run = federation(FedDyn(alpha=0.2), data=small_data(UNEQUAL))
    for _ in range(3):
        result = run.step()
    mean = {name: value.mean(0) for name, value in run.memory["gradient"].items()}
    assert difference({"h": run.server["drift"]}, {"h": mean}) < 1e-9
    norm = torch.cat([value.flatten() for value in mean.values()]).norm()
    torch.testing.assert_close(result.info["drift_norm"], norm)


def test_an_absent_client_keeps_what_it_remembers():
    for algorithm, part in ((SCAFFOLD(), "control"), (FedDyn(), "gradient")):
        run = federation(algorithm, participation=0.5)
        cohort = set(run.step().cohort.ids.tolist())
        moved = torch.stack([v.flatten(1).norm(dim=1) for v in run.memory[part].values()]).sum(0)
        assert {i for i, norm in enumerate(moved.tolist()) if norm > 0} == cohort


@pytest.mark.parametrize(("algorithm", "part"), [(SCAFFOLD(), "control"), (FedDyn(), "gradient")])
def test_batchnorm_that_stays_with_its_client_is_not_corrected(algorithm, part):
    """There is no global optimum to correct its scale and shift for: a correction would hold its own gradient up."""
    run = federation(algorithm, conv_net, batchnorm="all-local")
    after(run, 2)
    scale = "3.weight"
    assert scale not in run.memory[part]
    assert "0.weight" in run.memory[part]
    assert (run.memory["batchnorm"][scale] != 1).any()


def test_fednova_with_equally_many_steps_is_fedavg():
    """15 and 20 samples are two batches each: different sizes, equal steps."""
    data = small_data((15, 20, 11, 20))
    for options in ({}, {"participation": 0.5}):
        ours, plain = (federation(algorithm, data=data, epochs=2, **options) for algorithm in (FedNova(), FedAvg()))
        assert difference(after(ours, 3), after(plain, 3)) < 1e-12


def test_fednova_weighs_a_client_by_its_data_and_not_by_its_steps_besides():
    run = federation(FedNova(), data=small_data((10, 40)))
    weights = run.step().info["weights"][0]
    share, steps = torch.tensor([0.2, 0.8]), torch.tensor([1, 4])
    torch.testing.assert_close(weights, (share * steps).sum() * share.double() / steps)
    assert weights.sum() != 1  # they act on updates


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_gradients_uses_are_what_the_optimiser_makes_of_gradients_of_one(nesterov):
    """By torch's own: with a rate of 1 and gradients of 1 the model moves by a_k."""
    for steps in (1, 2, 7):
        value = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.SGD([value], lr=1.0, momentum=0.9, nesterov=nesterov)
        for _ in range(steps):
            value.grad = torch.ones_like(value)
            optimiser.step()
        assert float(gradient_uses(torch.tensor(steps).double(), 0.9, nesterov)) == pytest.approx(-value.item())
    assert float(gradient_uses(torch.tensor(7).double(), 0.0, False)) == 7


def settings(optimizer, keep=False):
    return Settings(1, 10, 0.1, optimizer, keep)


def made(algorithm, own):
    data = small_data((23, 40, 12))
    return Federation(algorithm, Engine(plain_net(), data, own, 0, dtype=torch.float64))


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), SGD(weight_decay=0.1), SGD(clip=1.0), Adam()])
def test_optimisers_that_a_method_does_not_suit_are_refused_before_any_work(optimizer):
    with pytest.raises(InputError, match="--param option: got 'II', must be I unless local training is plain SGD"):
        made(SCAFFOLD(), settings(optimizer))
    run = made(SCAFFOLD(option="I"), settings(optimizer))
    after(run, 2)
    assert run.scores.loss.isfinite().all()
    if isinstance(optimizer, Adam):
        with pytest.raises(InputError, match="--optimizer: got 'adam', must be sgd"):
            made(FedNova(), settings(optimizer))
    else:
        after(made(FedNova(), settings(optimizer)), 1)
    with pytest.raises(InputError, match="state that is kept"):
        made(FedNova(), settings(optimizer, keep=True))


@pytest.mark.parametrize("algorithm", [SCAFFOLD(option="I"), FedDyn(), FedNova(), FedALA(), IFCA(), PFedGraph()])
def test_momentum_is_the_same_on_both_backends(algorithm):
    data, own = small_data((23, 40, 5)), settings(SGD(momentum=0.9, nesterov=True))
    runs = [
        Federation(algorithm, Engine(plain_net(), data, own, 0, dtype=torch.float64), sequential=sequential)
        for sequential in (False, True)
    ]
    assert difference(*[after(run, 3) for run in runs]) < 1e-9


@pytest.mark.parametrize("kind", [FedAdagrad, FedAdam, FedYogi])
def test_a_large_tau_makes_them_fedavg(kind):
    """beta1 = 0, eta_g = tau -> infinity: eta_g / (sqrt(v) + tau) -> 1, if v has not started at tau^2."""
    made, plain = federation(kind(server_lr=1e6, beta1=0.0, tau=1e6)), federation(FedAvg())
    made.server = {**made.server, "second": zeros(made.server["second"])}
    assert difference(after(made, 2), after(plain, 2)) < 1e-5


@dataclass(frozen=True)
class PlainServer(FedOpt):
    """v = (1 - tau)^2: the step is server_lr m."""

    def second_moment(self, old, square):
        return torch.full_like(old, (1 - self.tau) ** 2)


def test_a_plain_server_at_rate_one_is_fedavg():
    assert difference(after(federation(PlainServer(1.0, 0.0, 0.5)), 3), after(federation(FedAvg()), 3)) < 1e-12


def test_the_moments_by_hand():
    old, square = torch.tensor([4.0, 4.0, 0.0]), torch.tensor([9.0, 1.0, 1.0])
    assert FedAdagrad().second_moment(old, square).tolist() == [13.0, 5.0, 1.0]
    assert FedAdam(beta2=0.75).second_moment(old, square).tolist() == [5.25, 3.25, 0.25]
    assert FedYogi(beta2=0.75).second_moment(old, square).tolist() == [6.25, 3.75, 0.25]  # from 0 as Adam


def test_without_memory_a_small_tau_makes_steps_of_one_size():
    """beta1 = beta2 = 0, tau -> 0: every number moves by eta_g sign(D)."""
    run = federation(FedAdam(server_lr=0.01, beta1=0.0, tau=1e-12, beta2=0.0), plain_net)
    start = run.server["model"]
    run.step()
    moved = torch.cat([(value - start[name]).flatten() for name, value in run.server["model"].items()]).abs()
    moved = moved[moved > 1e-9]  # pixels that are always 0 have no gradient
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-6, atol=0)


def test_batchnorm_statistics_never_pass_through_the_moments():
    run = federation(FedAdam(), conv_net, batchnorm="mean")
    after(run, 2)
    assert run.server["second"].keys() == {name for name, _ in nn.Module.named_parameters(conv_net())}


@pytest.mark.parametrize("changes", [{}, {"drop_last": True}, {"local_steps": 3}, {"epochs": 2, "local_steps": 3}])
def test_steps_are_those_that_training_makes(changes):
    """Counted in a part of the state."""

    def count(client, state, batch):
        return {"steps": {"count": state["steps"]["count"] + 1}}

    run = made(FedNova(), replace(settings(SGD()), **changes))
    trainer = run.client_side._trainer(torch.arange(3), 1)
    state, _ = trainer.train(count, {"steps": {"count": torch.zeros(3)}}, run.memory)
    assert trainer.steps().tolist() == state["steps"]["count"].tolist()
