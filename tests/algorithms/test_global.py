"""Methods around one global model: FedProx, FedAvgM, FedAvg_FT, SFL, per-FedAvg, pFedMe."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from feddwa.algorithms import SFL, FedAMP, FedAvg, FedAvgFT, FedAvgM, FedProx, Local, PerFedAvg, PFedMe
from feddwa.algorithms.perfedavg import MetaStep
from feddwa.algorithms.pfedme import MoreauStep
from feddwa.algorithms.proximal import ProximalStep
from feddwa.algorithms.sfl import label_graph
from feddwa.data.federated import Batch
from feddwa.engine.network import FunctionalClient
from feddwa.engine.rows import tensors
from tests.algorithms.conftest import after, difference, equal, federation, models
from tests.conftest import conv_net, map_state, plain_net, small_data

EQUAL = (20, 20, 20, 20)


@pytest.mark.parametrize("algorithm", [FedProx(mu=0), FedAvgM(beta=0), FedAvgM(beta=0, nesterov=False)])
def test_without_their_parameter_they_are_fedavg_bit_for_bit(algorithm):
    options = {"participation": 0.5, "dtype": torch.float32}
    assert equal(after(federation(algorithm, **options), 3), after(federation(FedAvg(), **options), 3))


def test_fedavgm_stays_close_to_fedavg_at_the_papers_beta():
    """The effective server step is 1 / (1 - 0.1): every round moves a little further than FedAvg."""
    plain, fast = (federation(algorithm) for algorithm in (FedAvg(), FedAvgM()))
    start = models(plain)
    ends = [after(run, 3)["model"] for run in (plain, fast)]
    moved = [torch.cat([(end[n] - start["model"][n])[0].flatten() for n in end]).norm() for end in ends]
    assert 1.02 < moved[1] / moved[0] < 1.3


def test_the_pull_is_the_gradient_of_the_proximal_term():
    """Several public codes build the term from detached tensors. Central differences of the objective tell."""
    torch.manual_seed(1)
    module, strength = plain_net().double(), 0.7
    params = {name: value.detach() for name, value in module.named_parameters()}
    anchor = {name: value + torch.randn_like(value) for name, value in params.items()}
    batch = Batch(torch.randn(6, 64, dtype=torch.float64), torch.arange(6))
    client = FunctionalClient(module, nn.functional.cross_entropy, {}, torch.tensor(0))
    new = ProximalStep(1.0, strength)(client, {"model": params}, batch, anchor)["model"]
    without = client.gradient(params, batch)

    def objective(params):
        distance = sum((value - anchor[name]).square().sum() for name, value in params.items())
        outputs = torch.func.functional_call(module, params, (batch.x,))
        return nn.functional.cross_entropy(outputs, batch.y) + strength / 2 * distance

    for name, value in params.items():
        gradient, change = value - new[name], torch.randn_like(value)
        assert (gradient - without[name]).abs().min() > 0
        ahead, behind = ({**params, name: value + step * change} for step in (1e-5, -1e-5))
        numeric = (objective(ahead) - objective(behind)) / 2e-5
        torch.testing.assert_close((gradient * change).sum(), numeric, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("pulled", "free"), [(FedProx(0.5), FedProx(0.0)), (FedAMP(lam=0.5), FedAMP(lam=0.0)), (SFL(reg=0.3), SFL())]
)
def test_every_method_with_a_pull_feels_it(pulled, free):
    assert difference(after(federation(pulled), 2), after(federation(free), 2)) > 1e-3


def test_a_strong_pull_keeps_clients_near_the_global_model():
    far, near = (federation(algorithm, lr=0.01) for algorithm in (FedProx(0.0), FedProx(50.0)))
    start = models(near)["model"]
    spread = [
        sum((v[0] - start[n][0]).square().sum() for n, v in after(run, 1)["model"].items()) for run in (far, near)
    ]
    assert spread[1] < 0.5 * spread[0]


@pytest.mark.slow
@pytest.mark.parametrize("network", [plain_net, conv_net])
def test_fine_tuning_gives_fedavgs_accuracy_after_the_next_round(network):
    """BatchNorm statistics of the tuned copy included; the global model does not notice."""
    tuned, plain = (federation(algorithm, network, dtype=torch.float32) for algorithm in (FedAvgFT(), FedAvg()))
    for _ in range(3):
        coming, after_training = tuned.scores, plain.step().after
        assert torch.equal(coming.accuracy, after_training.accuracy)
        torch.testing.assert_close(coming.loss, after_training.loss, rtol=1e-6, atol=0)
        tuned.step()
        assert equal(tuned.server, plain.server)
        assert equal(tuned.memory, plain.memory)


@pytest.mark.parametrize("algorithm", [FedAvgFT(), PerFedAvg()])
def test_adaptation_sees_training_data_only_and_is_thrown_away(algorithm):
    """A widespread code adapts on test batches. Other test samples must leave the adapted models as they are."""
    data = small_data()
    held = data.splits["test"]
    test = torch.cat([row[:size] for row, size in zip(held.index, held.sizes, strict=True)])
    other = dataclasses.replace(data, x=data.x.index_fill(0, test, 3.0), y=data.y.index_fill(0, test, 0))
    runs = [federation(algorithm, data=own) for own in (data, other)]
    assert equal(after(runs[0], 1), after(runs[1], 1))
    before = map_state(torch.clone, {**runs[0].server, **runs[0].memory})
    models(runs[0])
    assert equal({**runs[0].server, **runs[0].memory}, before)
    assert all(
        value.stride(0) == 0 for _, value in tensors(runs[0].algorithm.download(runs[0].server, runs[0].all_clients()))
    )


def test_sfl_on_a_uniform_graph_is_fedavg():
    """small_data gives all clients all ten labels: with all of them counted, A = 11'/N."""
    data = small_data((60, 60, 60, 60))
    sfl, fedavg = federation(SFL(top_labels=10), data=data), federation(FedAvg(), data=data)
    assert torch.equal(sfl.server["graph"]["spread"], torch.full((4, 4), 0.25, dtype=torch.float64))
    assert difference(after(sfl, 3), after(fedavg, 3)) < 1e-12


@pytest.mark.parametrize("algorithm", [SFL(hops=0), SFL(server_alpha=0.0)])
def test_sfl_without_a_graph_evaluates_local_models_that_start_from_the_mean(algorithm):
    data = small_data(EQUAL)
    sfl, local = federation(algorithm, data=data), federation(Local(), data=data)
    assert difference(after(sfl, 1), after(local, 1)) < 1e-12
    mean = {name: value.mean(0) for name, value in models(sfl)["model"].items()}
    assert difference({"model": sfl.server["model"]}, {"model": mean}) < 1e-12
    assert difference(after(sfl, 1), after(local, 1)) > 1e-3


def test_the_label_graph_by_hand():
    """Largest two labels: {0, 1}, {1, 2}, {3, 4} (ties to the smaller number), {2}; never a label with no samples."""
    counts = torch.tensor([[5, 4, 1, 0, 0], [0, 9, 9, 0, 1], [1, 0, 1, 7, 7], [0, 0, 3, 0, 0]])
    links = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 1], [0, 0, 1, 0], [0, 1, 0, 1]]).double()
    assert torch.equal(label_graph(counts, 2), links / links.sum(1, keepdim=True))


class Quadratic:
    """A client whose f(v) = 1/2 v'Hv on every batch: gradients and Hessians are known."""

    def __init__(self, hessian: torch.Tensor) -> None:
        self.hessian = hessian
        self.calls = 0

    def gradient(self, params, batch):
        self.calls += 1
        return {"v": self.hessian @ params["v"]}


@pytest.mark.parametrize(("variant", "calls"), [("fo", 2), ("hf", 4)])
def test_the_meta_step_on_a_quadratic(variant, calls):
    """FO: v - b H (I - aH) v. HF: v - b (I - aH) H (I - aH) v, exact for a quadratic whatever delta is."""
    rng = np.random.default_rng(0)
    root = torch.from_numpy(rng.normal(size=(5, 5)))
    hessian, v = root @ root.T, torch.from_numpy(rng.normal(size=5))
    a, b, identity = 0.05, 0.1, torch.eye(5, dtype=torch.float64)
    outer = hessian @ (identity - a * hessian) @ v
    expected = v - b * (outer if variant == "fo" else (identity - a * hessian) @ outer)
    client, batch = Quadratic(hessian), Batch(torch.zeros(12, 1), torch.zeros(12))
    new = MetaStep(variant, a, b, 1e-3)(client, {"model": {"v": v}}, batch)
    torch.testing.assert_close(new["model"]["v"], expected, rtol=1e-9, atol=1e-9)
    assert client.calls == calls


def test_the_hessian_free_product_approaches_the_exact_one():
    """On a network, (q - a h) tends to the true gradient of f(v - a grad f(v; D); D') with D'' = D."""
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    params = {name: value.detach() for name, value in module.named_parameters()}
    batch, other = (Batch(torch.randn(6, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2])) for _ in range(2))
    rate, cross_entropy = 0.3, nn.functional.cross_entropy

    def outer(params):
        def inner(params):
            return cross_entropy(torch.func.functional_call(module, params, (batch.x,)), batch.y)

        step = torch.func.grad(inner)(params)
        moved = {name: value - rate * step[name] for name, value in params.items()}
        return cross_entropy(torch.func.functional_call(module, moved, (other.x,)), other.y)

    exact = torch.func.grad(outer)(params)
    three = Batch(torch.cat([batch.x, other.x, batch.x]), torch.cat([batch.y, other.y, batch.y]))
    errors = []
    for delta in (1e-1, 1e-2, 1e-3):
        client = FunctionalClient(module, cross_entropy, {}, torch.tensor(0))
        new = MetaStep("hf", rate, 1.0, delta)(client, {"model": params}, three)["model"]
        errors.append(max(float((params[n] - new[n] - exact[n]).abs().max()) for n in params))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-6


def test_perfedavg_without_an_inner_step_is_sgd_on_every_second_part():
    """a = 0: v - b grad f(v; D')."""
    calls = []

    class Recorder(Quadratic):
        def gradient(self, params, batch):
            calls.append(batch.y)
            return super().gradient(params, batch)

    v, identity = torch.ones(2), torch.eye(2)
    batch = Batch(torch.zeros(7, 1), torch.arange(7))
    new = MetaStep("fo", 0.0, 0.1, 1e-3)(Recorder(identity), {"model": {"v": v}}, batch)
    assert torch.equal(new["model"]["v"], v - 0.1 * v)
    assert [part.tolist() for part in calls] == [[0, 1, 2, 3], [4, 5, 6]]


def test_perfedavg_drops_a_rest_too_small_to_divide():
    step, state = MetaStep("hf", 0.1, 0.1, 1e-3), {"model": {"v": torch.ones(2)}}
    client = Quadratic(torch.eye(2))
    assert step(client, state, Batch(torch.zeros(5, 1), torch.zeros(5))) is state
    assert client.calls == 0


def test_perfedavg_makes_as_many_meta_steps_as_fedavg_makes_steps():
    """Twice the gradients, hence twice the work, when sizes divide."""
    data = small_data((40, 80))
    meta, plain = (federation(algorithm, data=data).step() for algorithm in (PerFedAvg(), FedAvg()))
    assert torch.equal(meta.costs.flops, 2 * plain.costs.flops)


def test_pfedme_evaluates_theta_which_is_not_the_global_model_nor_the_upload():
    """Elsewhere theta aliases the model's parameters, into which w_i or w is written afterwards."""
    run = federation(PFedMe())
    result = run.step()
    theta, w = models(run)["model"], run.server["model"]
    name = "1.weight"
    assert (theta[name] - w[name]).flatten(1).norm(dim=1).min() > 1e-2
    assert (theta[name][0] - theta[name][1]).norm() > 1e-2
    torch.testing.assert_close(run.scores.loss, result.after.loss)  # everybody took part: theta is what was trained
    kept = map_state(torch.clone, {"personal": run.memory["personal"]})
    models(run)
    assert equal({"personal": run.memory["personal"]}, kept)


def test_pfedme_with_beta_0_never_moves_the_global_model():
    run = federation(PFedMe(beta=0.0))
    start = map_state(torch.clone, run.server)
    after(run, 2)
    assert equal(run.server, start)


def test_pfedme_without_a_leash_is_local_sgd():
    """lambda = 0 and K = 1: theta is trained as Local trains, and w never moves."""
    free, local = federation(PFedMe(lam=0.0, inner_steps=1)), federation(Local())
    assert difference(after(free, 1), after(local, 1)) < 1e-12
    assert difference(free.server, federation(PFedMe()).server) < 1e-12


@pytest.mark.parametrize("lam", [0.5, 5.0, 500.0])
def test_many_inner_steps_of_pfedme_solve_the_proximal_problem(lam):
    """On f = 1/2 v'Hv: theta = lambda (H + lambda I)^-1 w, near w for a large lambda; w follows it."""
    hessian, w = torch.diag(torch.tensor([1.0, 2.0, 3.0])).double(), torch.ones(3).double()
    step = MoreauStep(lam, 200, 0.9 / (3 + lam), 0.01 / lam)
    new = step(Quadratic(hessian), {"model": {"v": w}, "personal": {"v": w}}, Batch(w, w))
    theta = lam / (hessian.diagonal() + lam)
    torch.testing.assert_close(new["personal"]["v"], theta)
    torch.testing.assert_close(new["model"]["v"], w - 0.01 * (w - theta))
