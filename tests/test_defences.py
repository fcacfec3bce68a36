"""Defences: against an oracle, up to their breakdown points, and at work in every algorithm."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import feddwa
from feddwa import cli
from feddwa.algorithms import ALGORITHMS, SCAFFOLD, FedAMP, FedAvg, FedDWA, Local
from feddwa.attacks import ATTACKS
from feddwa.attacks.simple import Scaled
from feddwa.config import RunConfig
from feddwa.defences import DEFENCES, Defence
from feddwa.defences.bounds import Clip, NormBound
from feddwa.defences.chain import Defences
from feddwa.engine import Stack, keys
from feddwa.engine.rows import difference, norms, tensors
from feddwa.errors import InputError
from feddwa.federation import Federation
from feddwa.results.methods import by_method
from feddwa.results.record import read
from feddwa.sides import ServerSide
from tests.algorithms.conftest import equal
from tests.algorithms.conftest import federation as plain_federation
from tests.conftest import ANYWHERE, SIZES, plain_net
from tests.oracles import defences as oracle

PERSONAL = "robust-rows"  # which replaces means that are made for one client
MEANS = [name for name, kind in DEFENCES.items() if kind.models is not Defence.models and name != PERSONAL]
ROBUST = [name for name in MEANS if name not in ("nnm", "bucketing")]  # by themselves; these come before another one
KEY = keys.key(0, "test")


# Attackers may send anything, of any size.
ANY = st.floats(-1e6, 1e6, allow_nan=False)
LIES = st.lists(st.lists(ANY, min_size=7, max_size=7), min_size=1, max_size=4)


def chain(*names: str, **parameters) -> Defences:
    return Defences(tuple(DEFENCES[name](**parameters) for name in names))


def federation(algorithm, *names: str, attack: str = "", share: float = 0.25, **options) -> Federation:
    attacks = ((ATTACKS[attack](), share),) if attack else ()
    return plain_federation(algorithm, plain_net, attacks=attacks, defences=chain(*names), **options)


def stack(x: np.ndarray) -> Stack:
    """Two tensors, one of rank 3, of vectors (s, 7)."""
    return {"w": torch.from_numpy(x[:, :4]).reshape(-1, 2, 2), "b": torch.from_numpy(x[:, 4:])}


def flat(models: Stack) -> np.ndarray:
    return torch.cat([value.reshape(len(value), -1) for value in models.values()], 1).numpy()


def robust(name: str, p: np.ndarray, x: np.ndarray, **parameters) -> np.ndarray:
    """The mean (7,) that a defence makes of vectors x (s, 7) with weights p (s,)."""
    return flat(chain(name, **parameters).mean(torch.from_numpy(p)[None], stack(x), False, KEY))[0]


def robust_rows(p: np.ndarray, x: np.ndarray, **parameters) -> np.ndarray:
    """The rows (s, 7) of weights p (s, s) and models x (s, 7), of which x_i is row i's own."""
    return flat(chain(PERSONAL, **parameters).mean(torch.from_numpy(p), stack(x), True, KEY))


def drawn(s: int, seed: int, even: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = np.ones(s) if even else rng.uniform(0.2, 3, s)
    return p / p.sum(), rng.normal(size=(s, 7)) * np.linspace(0.1, 3, 7) + 5


ORACLES = {
    "median": lambda p, x: oracle.median(p, x),
    "trimmed-mean": lambda p, x: oracle.trimmed_mean(p, x, 0.3),
    "geometric-median": lambda p, x: oracle.geometric_median(p, x),
    "krum": lambda p, x: oracle.krum(p, x, math.floor(0.3 * len(x) + 1e-9), 1),
    "multi-krum": lambda p, x: oracle.krum(p, x, math.floor(0.3 * len(x) + 1e-9), math.ceil(0.7 * len(x) - 1e-9)),
    "centred-clipping": lambda p, x: oracle.centred_clipping(p, x, 1.0, 3),
    "nnm": lambda p, x: p @ oracle.nnm(x, math.floor(0.3 * len(x) + 1e-9)),
    "bucketing": lambda p, x: p @ x,  # by itself it changes no mean
}  # fmt: skip


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("name", MEANS)
def test_robust_means_agree_with_the_oracle(name, even):
    for s in (1, 2, 5, 6, 10, 20):
        p, x = drawn(s, s, even)
        parameters = {"passes": 2000} if name == "geometric-median" else {}
        assert np.allclose(robust(name, p, x, **parameters), ORACLES[name](p, x), rtol=1e-6, atol=1e-7), s


def test_several_defences_act_in_turn():
    p, x = drawn(10, 0, even=False)
    found = flat(chain("nnm", "trimmed-mean").mean(torch.from_numpy(p)[None], stack(x), False, KEY))[0]
    assert np.allclose(found, oracle.trimmed_mean(p, oracle.nnm(x, 3), 0.3), rtol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_buckets_are_drawn_anew_for_every_row_and_become_their_means(size):
    p, x = drawn(7, 0, even=False)
    bucketing = Defences((DEFENCES["bucketing"](size=size), DEFENCES["median"]()))
    rows = flat(bucketing.mean(torch.from_numpy(np.stack([p, p])), stack(x), False, KEY))
    orders = keys.permutations(keys.fold(KEY, torch.arange(2)), torch.tensor([7, 7])).tolist()
    assert orders[0] != orders[1]
    for row, order in zip(rows, orders, strict=True):
        assert np.allclose(row, oracle.median(*oracle.buckets(p, x, order, size)), rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(lies=LIES, seed=st.integers(0, 99))
def test_buckets_hold_while_fewer_than_half_of_them_are_spoilt(lies, seed):
    """f attackers spoil at most f buckets of two: of 4 f + 2 models the median bucket is between honest ones."""
    honest = np.random.default_rng(seed).normal(size=(3 * len(lies) + 2, 7))
    x = np.concatenate([np.array(lies), honest])
    bucketed = Defences((DEFENCES["bucketing"](), DEFENCES["median"]()))
    weights = torch.full((1, len(x)), 1 / len(x), dtype=torch.float64)
    found = flat(bucketed.mean(weights, stack(x), False, keys.key(seed, "test")))[0]
    assert (found >= honest.min(0) - 1e-9).all()
    assert (found <= honest.max(0) + 1e-9).all()


@pytest.mark.parametrize(("kappa", "multiple"), [(1.0, 1.0), (0.15, 1.0), (1.0, 0.5), (0.2, math.inf)])
def test_robust_rows_agree_with_the_oracle(kappa, multiple):
    """Also a row without weight of its own, one on itself alone, and one on a copy of its own model."""
    for s in (2, 5, 10):
        p, x = np.stack([drawn(s, seed, even=False)[0] for seed in range(s)]), drawn(s, 99, True)[1]
        p[0, 0], p[1] = 0, np.eye(s)[1]
        p /= p.sum(1, keepdims=True)
        x[-1] = x[0]
        found = robust_rows(p, x, kappa=kappa, multiple=multiple)
        for i, row in enumerate(found):
            assert np.allclose(row, oracle.robust_row(p[i], x, x[i], kappa, multiple), rtol=1e-9, atol=1e-12), (s, i)


def test_rows_without_bounds_are_plain_means():
    p, x = np.stack([drawn(6, seed, even=False)[0] for seed in range(6)]), drawn(6, 99, True)[1]
    assert np.allclose(robust_rows(p, x, kappa=1.0, multiple=math.inf), p @ x, rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(lies=LIES, seed=st.integers(0, 99), kappa=st.sampled_from([1.0, 0.05]))
def test_attackers_move_a_robust_row_by_a_bounded_part_of_honest_distances(lies, seed, kappa):
    """While honest partners have more weight than attackers: by at most a min(p, kappa) of the farthest honest one."""
    honest = np.random.default_rng(seed).normal(size=(len(lies) + 2, 7))  # the receiver is the first
    x = np.concatenate([honest, np.array(lies)])
    p = np.full((len(x), len(x)), 1 / len(x))
    found = robust_rows(p, x, kappa=kappa)[0]
    farthest = max(np.linalg.norm(v - honest[0]) for v in honest)
    moved = min(1 / len(x), kappa) * (len(x) - 1) * farthest
    assert np.linalg.norm(found - honest[0]) <= moved * (1 + 1e-9)


def test_a_majority_of_a_rows_partners_breaks_it():
    x = np.concatenate([np.random.default_rng(0).normal(size=(4, 7)), np.full((6, 7), 1e4)])
    assert np.linalg.norm(robust_rows(np.full((10, 10), 0.1), x)[0]) > 5e3


def test_robust_rows_follow_shifts_and_orders():
    rng = np.random.default_rng(0)
    p, x, order = rng.dirichlet(np.ones(8), 8), rng.normal(size=(8, 7)), rng.permutation(8)
    once = robust_rows(p, x, kappa=0.2)
    assert np.allclose(robust_rows(p[order][:, order], x[order], kappa=0.2), once[order], rtol=1e-9)
    assert np.allclose(robust_rows(p, x + 100, kappa=0.2), once + 100, rtol=1e-9)


def test_robust_rows_want_a_model_of_the_clients_own():
    with pytest.raises(InputError, match="--defence robust-rows: measures from a client's own model, and this method"):
        federation(FedAvg(), PERSONAL).step()


@pytest.mark.parametrize("name", MEANS)
def test_rows_are_means_of_their_own(name):
    """Every row of P by itself, over those that it weights; what a row sums to is a factor of it."""
    rng, x = np.random.default_rng(0), drawn(8, 1, True)[1]
    p = rng.uniform(size=(5, 8)) * (rng.uniform(size=(5, 8)) < 0.7)
    p[0], p[1] = 0, np.eye(8)[3]
    found = flat(chain(name).mean(torch.from_numpy(p), stack(x), False, KEY))
    assert np.allclose(found[0], 0)
    assert np.allclose(found[1], x[3])
    for own, row in zip(p[2:], found[2:], strict=True):
        who = own > 0
        alone = robust(name, own[who] / own.sum(), x[who])
        assert np.allclose(row, own.sum() * alone, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in MEANS if "attackers" in vars(DEFENCES[name]())])
def test_no_attackers_expected_is_the_mean(name):
    p, x = drawn(9, 2, even=False)
    if name not in ("krum", "nnm"):  # which take one model, or the mean of all without weights
        assert np.allclose(robust(name, p, x, attackers=0.0), p @ x, rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(lies=LIES, seed=st.integers(0, 99))
@pytest.mark.parametrize("name", ROBUST)
def test_a_robust_mean_stays_near_the_honest_models_up_to_its_breakdown_point(name, lies, seed):
    """Fewer than half attack (of Krum's kind f with s >= 2 f + 3): what comes out is bounded by the honest models."""
    few = len(lies)
    honest = np.random.default_rng(seed).normal(size=(2 * few + 3, 7))
    share = few / (3 * few + 3)
    x = np.concatenate([np.array(lies), honest])
    p = np.full(len(x), 1 / len(x))
    parameters = {"attackers": share} if "attackers" in vars(DEFENCES[name]()) else {}
    found = robust(name, p, x, **parameters)
    if name in ("median", "trimmed-mean"):
        assert (found >= honest.min(0) - 1e-9).all()
        assert (found <= honest.max(0) + 1e-9).all()
    widest = max(np.linalg.norm(a - b) for a in honest for b in honest)
    limit = {"geometric-median": 2 * (1 - share) / (1 - 2 * share), "multi-krum": 2 * few}.get(name, 2 * math.sqrt(7))
    assert np.linalg.norm(found - honest.mean(0)) <= limit * widest + 0.1


def test_a_mean_has_no_breakdown_point():
    p, x = drawn(9, 0, True)
    x[0] = 1e6
    assert np.linalg.norm(p @ x - x[1:].mean(0)) > 1e5
    assert np.linalg.norm(robust("nnm", p, x) - x[1:].mean(0)) > 1e4  # by itself it holds against nobody


@pytest.mark.parametrize("name", ROBUST)
def test_a_majority_of_attackers_wins(name):
    """The breakdown point is a point: with attackers beyond it every rule follows them."""
    x = np.concatenate([np.full((6, 7), 1e4), np.random.default_rng(0).normal(size=(4, 7))])
    assert np.linalg.norm(robust(name, np.full(10, 0.1), x)) > 5e3


@pytest.mark.parametrize("name", ROBUST)
def test_robust_means_follow_shifts_and_orders(name):
    p, x = drawn(9, 3, even=False)
    order = np.random.default_rng(0).permutation(9)
    once = robust(name, p, x)
    assert np.allclose(robust(name, p[order], x[order]), once, rtol=1e-6)
    assert np.allclose(robust(name, p, x + 100), once + 100, rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(lies=LIES, seed=st.integers(0, 99))
def test_clipped_updates_are_no_longer_than_a_multiple_of_honest_ones_or_a_bound(lies, seed):
    honest = np.random.default_rng(seed).normal(size=(len(lies) + 1, 7))
    x = np.concatenate([np.array(lies), honest])
    longest = np.linalg.norm(honest, axis=1).max()
    for defence, bound in ((DEFENCES["clip"](), 1.5 * longest), (NormBound(0.7), 0.7)):
        assert (np.linalg.norm(flat(defence.updates(stack(x))), axis=1) <= bound * (1 + 1e-9)).all()
    assert np.allclose(flat(NormBound(0.7).updates(stack(x))), oracle.norm_bound(x, 0.7), rtol=1e-9)


@pytest.mark.parametrize("s", [1, 4, 9])
def test_clipping_agrees_with_the_oracle_and_leaves_short_updates_as_they_are(s):
    x, start = drawn(s, s, True)[1], drawn(s, 50, True)[1]
    x[0] *= 30
    sent = {"model": stack(start + x), "cosine": {"layer": torch.arange(float(s))}}
    found = chain("clip").filtered(sent, {"model": stack(start)}, ())
    assert torch.equal(found["cosine"]["layer"], sent["cosine"]["layer"])  # not an update of anything
    assert np.allclose(flat(found["model"]) - start, oracle.clip(x, 1.5), rtol=1e-9)
    short = np.linalg.norm(x, axis=1) <= 1.5 * np.median(np.linalg.norm(x, axis=1))
    assert np.array_equal(flat(found["model"])[short], flat(sent["model"])[short])
    control = chain("clip").filtered({"control": stack(x)}, {"control": stack(start)}, SCAFFOLD.updates)
    assert np.allclose(flat(control["control"]), oracle.clip(x, 1.5), rtol=1e-9)  # a difference already


def test_fedavg_takes_the_robust_mean(monkeypatch):
    """One round of FedAvg under each defence: the oracle's mean of what arrives, by data size."""
    seen: dict[str, Tensor] = {}
    advance = ServerSide.advance

    def noted(self, state, cohort, upload):
        seen.update(upload["model"])
        return advance(self, state, cohort, upload)

    monkeypatch.setattr(ServerSide, "advance", noted)
    for name in MEANS:
        run = federation(FedAvg(), name)
        sizes = run.step().cohort.sizes.double().numpy()
        found = flat({key: value[None] for key, value in run.server["model"].items()})[0]
        wanted = ORACLES[name](sizes / sizes.sum(), flat(seen))
        assert np.allclose(found, wanted, rtol=1e-3, atol=1e-6), name


def test_rows_of_personalised_methods_take_robust_means_of_whom_they_weight():
    """FedDWA's row over its K nearest: with K = 1 everybody keeps its own model, whatever the defence."""
    plain = federation(FedDWA(top_k=1))
    plain.step()
    for name in (*MEANS, PERSONAL):
        run = federation(FedDWA(top_k=1), name)
        run.step()
        for (_, a), (_, b) in zip(tensors(run.server), tensors(plain.server), strict=True):
            assert torch.allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedDWA(), ALGORITHMS["feddwa_plus"](), ALGORITHMS["ditto"]()])
def test_one_loud_attacker_ruins_means_and_no_robust_ones(algorithm):
    """An update of 90 times its length, just short of what is refused: honest models stay near where they would be."""

    def moved(*names: str) -> float:
        run = plain_federation(algorithm, plain_net, attacks=((Scaled(90.0), 0.13),), defences=chain(*names))
        start = run.personal(run.all_clients())[0]
        run.step()
        apart = difference(run.personal(run.all_clients())[0], start)
        return float(norms(apart)[run.honest].max())

    bound = 1 if algorithm.title != "Ditto" else 1e9  # whose evaluated models are pulled towards w only one round later
    for name in ("clip", *ROBUST, *([PERSONAL] if algorithm.title.startswith("FedDWA") else [])):
        assert moved(name) < bound, name
    if algorithm.title == "FedAvg":
        assert moved() > 2


MIXING = {name: ALGORITHMS[name]() for name in ANYWHERE if name not in ("fedfomo", "l2c")} | {
    "fedamp": FedAMP(sigma=1e6)  # whose weights are not negative
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", MIXING)
@pytest.mark.parametrize("defence", ["clip", "median", "trimmed-mean", "geometric-median", "multi-krum", "nnm"])
def test_every_algorithm_lives_with_every_defence(algorithm, defence):
    run = federation(MIXING[algorithm], defence, attack="scaled", participation=0.75)
    assert not any(run.step().missing for _ in range(2))
    assert all(value.isfinite().all() for _, value in tensors(run.server) if value.is_floating_point())
    assert run.scores.loss[run.honest].isfinite().all()


@pytest.mark.parametrize("name", ["fedfomo", "l2c"])
def test_who_takes_no_mean_is_told_so(name):
    """Their server passes models on, and clients mix: what can be done is done to the updates."""
    federation(ALGORITHMS[name](), "clip").step()
    with pytest.raises(InputError, match=r"--defence: .* has none; take clip, which acts"):
        federation(ALGORITHMS[name](), "median").step()


def test_negative_weights_are_told_so():
    with pytest.raises(InputError, match="--defence: replaces means, and this method's weights are negative"):
        federation(FedAMP(sigma=1.0), "median").step()


def test_local_needs_no_defence():
    defended, plain = federation(Local(), "clip", "median"), federation(Local())
    for run in (defended, plain):
        run.step()
    assert equal(defended.memory, plain.memory)


def test_no_defence_and_bounds_that_nobody_reaches_change_no_bit():
    for algorithm in (FedAvg(), FedDWA(), SCAFFOLD()):
        plain, run = federation(algorithm), plain_federation(algorithm, plain_net, defences=Defences((Clip(1e9),)))
        for each in (plain, run):
            each.step()
        assert equal(plain.server, run.server)


def test_a_defence_is_part_of_what_a_round_costs():
    """Distances among m models, and their mean: 2 (m^2 + m) d FLOPs where a plain mean takes 2 m d."""
    plain, krum = (federation(FedAvg(), *names).step().costs for names in ((), ("multi-krum",)))
    m, d = len(SIZES), 64 * 12 + 12 + 120 + 10
    assert plain.server_flops == 2 * m * d
    kept = m - math.floor(0.3 * m)
    assert krum.server_flops == 2 * (m * m + kept) * d
    rows = federation(FedDWA(top_k=3), "geometric-median").step().costs
    assert rows.server_flops == 2 * (m * m + m * m + 3 * m) * d  # FedDWA's distances, one matrix for all rows, means
    rows = federation(FedDWA(top_k=3), PERSONAL).step().costs
    assert rows.server_flops == 2 * (m * m + 3 * m + 4 * m) * d  # distances to own models; means of one model more


@pytest.mark.parametrize("backend", [{"chunk": 3}, {"sequential": True}])
def test_backends_agree_on_defences(backend):
    runs = [federation(FedDWA(), "clip", "trimmed-mean", attack="random", **each) for each in ({}, backend)]
    for run in runs:
        run.step(), run.step()
    for (_, a), (_, b) in zip(tensors(runs[0].server), tensors(runs[1].server), strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"defence": "wall"}, "--defence: unknown name 'wall'; valid: clip, norm-bound, median, trimmed-mean"),
        ({"defence": "clip,clip"}, "--defence clip: got 'clip,clip', must be given once"),
        ({"defence": "clip,"}, "--defence: unknown name ''"),
        ({"defence": "krum", "param": ("attackers=0.5",)}, "--param attackers: got 0.5, must be from 0 to below 0.5"),
        ({"defence": "norm-bound", "param": ("bound=0",)}, "--param bound: got 0.0, must be a finite number above 0"),
        ({"defence": "robust-rows", "param": ("kappa=0",)}, "--param kappa: got 0.0, must be above 0 and at most 1"),
        ({"defence": "robust-rows", "param": ("multiple=0",)}, "--param multiple: got 0.0, must be a number above 0"),
        ({"defence": "bucketing", "param": ("size=0",)}, "--param size: got 0, must be at least 1"),
        ({"defence": "clip", "param": ("multiple=0",)}, "--param multiple: got 0.0, must be a finite number above 0"),
        ({"defence": "nnm,krum", "param": ("attackers=0.2",)}, "nnm and krum both have it; write nnm.attackers"),
        ({"defence": f"{__name__}:NoDefence"}, "inherits from feddwa.defences.Defence"),
    ],
)
def test_bad_requests_are_one_line(options, message):
    with pytest.raises(InputError, match=message):
        RunConfig(**options).resolved()


class NoDefence:
    pass


@dataclass(frozen=True)
class Halved(Defence):
    """A defence from outside the package."""

    summary = "halves all updates"

    factor: float = 0.5
    """Of the updates."""

    def updates(self, updates: Stack) -> Stack:
        return {name: self.factor * value for name, value in updates.items()}


def test_defences_of_ones_own(capsys, tmp_path):
    reference = f"{__name__}:Halved"
    options = {"clients": 4, "rounds": 1, "algorithm": "fedavg"}
    feddwa.run(defence=reference, param=("factor=0",), out=str(tmp_path / "run"), **options)
    assert "Halved.factor=0.0" in (tmp_path / "run" / "config.toml").read_text()
    still = feddwa.run(defence=reference, param=("factor=0",), out=False, **options)
    assert still.metrics[1]["loss_before"] == pytest.approx(still.metrics[0]["loss_before"])
    assert cli.main(["list", "defences", reference]) == 0
    assert "factor=0.5  Of the updates." in capsys.readouterr().out


def test_seeds_in_lockstep_are_the_runs_alone():
    options = {"clients": 6, "rounds": 2, "defence": "clip,geometric-median", "algorithm": "feddwa", "out": False}
    together = feddwa.run(seeds=(0, 1), **options)
    for seed in (0, 1):
        alone = feddwa.run(seed=seed, **options)
        assert together[seed].metrics[-1]["loss_before"] == pytest.approx(alone.metrics[-1]["loss_before"], rel=1e-4)


@pytest.mark.parametrize("algorithm", ["fedavg", "feddwa_plus"])
def test_thirty_percent_of_attackers_cost_little_under_a_defence(algorithm):
    """Digits, 12 rounds: scaled updates take what a bound on their length gives back."""
    options = {"rounds": 12, "algorithm": algorithm, "attack": "scaled=0.3", "out": False}
    bare, defended = (feddwa.run(defence=name, **options).summary["accuracy"]["last"] for name in ("", "clip"))
    assert defended > bare


def test_runs_that_differ_by_a_defence_or_its_parameter_are_told_apart(tmp_path):
    options = {"clients": 4, "rounds": 1, "algorithm": "fedavg"}
    given = [{}, {"defence": "clip"}, {"defence": "clip", "param": ("multiple=2",)}]
    for number, own in enumerate(given):
        feddwa.run(**options, **own, out=str(tmp_path / str(number)))
    methods = by_method(read([tmp_path]))
    assert sorted(method.name for method in methods) == [
        "FedAvg",
        "FedAvg defence=clip",
        "FedAvg defence=clip clip.multiple=2.0",
    ]


def test_an_algorithm_may_have_a_defence_of_its_own(tmp_path, capsys):
    """FedDWA+ clips unless it is told otherwise; configuration, summary, terminal, report and names say so."""
    options = {"algorithm": "feddwa_plus", "clients": 4, "rounds": 2}
    resolved = [
        RunConfig(**options, **own).resolved().defence for own in ({}, {"defence": "none"}, {"defence": "krum"})
    ]
    assert resolved == ["clip", "none", "krum"]
    assert RunConfig(algorithm="fedavg", defence="").resolved().defence == "none"
    assert RunConfig(**options, param=("multiple=3",)).resolved().make_defences() == (Clip(3.0),)
    folders = {}
    for name in ("clip", "none"):
        folders[name] = str(tmp_path / name)
        told = [] if name == "clip" else ["--defence", "none"]
        line = ["run", "--algorithm", "feddwa_plus", "--clients", "4", "--rounds", "2", *told, "--out", folders[name]]
        assert cli.main(line) == 0
        assert f'defence = "{name}"' in (tmp_path / name / "config.toml").read_text()
        summary = json.loads((tmp_path / name / "record.json").read_text())["summary"]
        assert summary.get("defence", "none") == name
        assert ("Defence of feddwa_plus: clip." in capsys.readouterr().out) == (name == "clip")
    assert sorted(method.name for method in by_method(read([tmp_path]))) == ["FedDWA+", "FedDWA+ defence=none"]
    page = tmp_path / "page.html"
    assert cli.main(["report", folders["clip"], "-o", str(page)]) == 0
    assert "Defence of FedDWA+: clip." in page.read_text()
