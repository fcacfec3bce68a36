"""Hostile clients: who attacks, what attackers send and know, and that scores are those of the honest ones."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

import feddwa
from feddwa import cli, updates
from feddwa.algorithms import ALGORITHMS, SCAFFOLD, FedAvg, FedDWA, Local
from feddwa.attacks import ATTACKS, Attack, Seen
from feddwa.attacks.attackers import Attackers
from feddwa.attacks.statistics import stealth
from feddwa.build import divided, load_dataset, load_task, make_engine, make_federation
from feddwa.config import RunConfig
from feddwa.engine import Cohort, Stack
from feddwa.engine.rows import tensors
from feddwa.errors import InputError
from feddwa.federation import Federation
from tests.algorithms.conftest import equal
from tests.algorithms.conftest import federation as plain_federation
from tests.conftest import ANYWHERE, SIZES, conv_net, plain_net
from tests.oracles import attacks as oracle

N = len(SIZES)


def federation(algorithm, network=plain_net, **options) -> Federation:
    shares = options.pop("attacks", {})
    attacks = tuple((ATTACKS[name](), share) for name, share in shares.items())
    return plain_federation(algorithm, network, attacks=attacks, **options)


def everybody(n: int = N) -> Cohort:
    return Cohort(torch.arange(n), torch.full((n,), 10), 1, n)


def attackers(n: int, attack: Attack, share: float, seed: int = 0) -> Attackers:
    return Attackers(seed, n, ((attack, share),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fire=0.1", "--attack: unknown name 'fire'; valid: sign-flip, scaled, random, free-rider, alie"),
        ("sign-flip", "--attack sign-flip: got '', must be a number"),
        ("sign-flip=1.5", "--attack sign-flip: got 1.5, must be from 0 to 1"),
        ("sign-flip=0.1,sign-flip=0.2", "--attack sign-flip: .* given once"),
        ("random=0.6,scaled=0.4", "--attack: .* together below 1"),
        ("random=0.98", "--attack random=0.98: nobody of 20 clients would be honest"),
        ("random=0.01", r"--attack random: got 0.01, must be 0, or above 0.025: it hits nobody of 20"),
        (f"{__name__}:NoAttack=0.5", "must be a frozen dataclass that inherits from feddwa.attacks.Attack"),
        (f"{__name__}:Needy=0.5", "its field strength has no default"),
    ],
)
def test_bad_requests_are_one_line(text, message):
    with pytest.raises(InputError, match=message):
        feddwa.RunConfig(attack=text).resolved()


class NoAttack:
    pass


@dataclass(frozen=True)
class Needy(Attack):
    strength: float


@pytest.mark.parametrize(
    ("attack", "parameter", "message"),
    [
        ("scaled", "factor=inf", "--param factor: got inf, must be a finite number"),
        ("ipm", "epsilon=-1", "--param epsilon: got -1.0, must be a finite number, 0 or more"),
        ("alie", "z=nan", "--param z: got nan, must be a finite number, or none"),
        ("alie", "knows=all", "--param knows: got 'all', must be one of own, honest"),
        ("alie", "factor=2", "--param factor: no such hyper-parameter; valid for .*; alie: z, knows"),
        ("alie=0.2,ipm", "knows=own", "alie and ipm both have it; write alie.knows"),
    ],
)
def test_bad_parameters_are_one_line(attack, parameter, message):
    with pytest.raises(InputError, match=message):
        feddwa.RunConfig(attack=f"{attack}=0.2", param=(parameter,)).resolved()


def test_parameters_of_attacks_stand_in_the_configuration(tmp_path):
    config = feddwa.RunConfig(attack="scaled=0.2,alie=0.1", param=("factor=3",)).resolved()
    assert {"scaled.factor=3.0", "alie.z=None", "alie.knows=own"} <= set(config.param)
    first, second = config.make_attacks()
    assert (vars(first[0])["factor"], first[1], second[1]) == (3.0, 0.2, 0.1)
    assert config.resolved() == config


def test_attackers_are_the_same_in_every_round():
    shares = ((ATTACKS["sign-flip"](), 0.25), (ATTACKS["random"](), 0.5))
    some = Attackers(3, 40, shares)
    assert torch.bincount(some.kinds).tolist() == [10, 10, 20]
    assert torch.equal(some.kinds, Attackers(3, 40, shares).kinds)
    assert not torch.equal(some.kinds, Attackers(4, 40, shares).kinds)
    assert torch.equal(some.honest, (some.kinds == 0).nonzero().flatten())


def test_what_attackers_send_who_know_nothing_of_others():
    drawn = torch.randn(4, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    start = {"model": {"w": drawn, "n": torch.arange(4)}}
    honest = {"model": {"w": drawn + 1, "n": torch.arange(4)}, "scores": {"raw": torch.ones(4, 5)}}
    for name, moved in (("sign-flip", -1.0), ("scaled", 10.0), ("free-rider", 0.0)):
        sent = attackers(4, ATTACKS[name](), 1.0).sent(everybody(4), start, honest, ())
        assert torch.allclose(sent["model"]["w"], drawn + moved)
        assert torch.equal(sent["model"]["n"], torch.arange(4))  # whole numbers are no part of a model
        assert torch.equal(sent["scores"]["raw"], torch.full((4, 5), moved))  # from 0
    half = attackers(4, ATTACKS["sign-flip"](), 0.5)
    sent, hit = half.sent(everybody(4), start, honest, ()), half.kinds > 0
    assert torch.equal(sent["model"]["w"][~hit], honest["model"]["w"][~hit])
    assert torch.allclose(sent["model"]["w"][hit], drawn[hit] - 1)


def test_noise_has_the_size_of_what_it_replaces():
    sent = {"lengths": {"w": torch.arange(1.0, 5.0)}, "model": {"w": torch.full((4, 5000), 2.0)}}
    start = {"model": {"w": torch.ones(4, 5000)}}
    found = attackers(4, ATTACKS["random"](), 1.0).sent(everybody(4), start, sent, ())
    assert found["lengths"]["w"].shape == (4,)
    assert not torch.equal(found["lengths"]["w"], sent["lengths"]["w"])
    noise = found["model"]["w"]
    assert torch.allclose(noise.square().mean(1).sqrt(), torch.full((4,), 2.0), rtol=0.05)
    assert abs(float(noise.mean())) < 0.05
    assert abs(float(torch.corrcoef(noise)[0, 1])) < 0.1


def test_a_number_with_the_name_of_a_tensor_is_attacked_as_a_number():
    """The lengths that go with a sketch have the names of parameters, and the shape of none."""
    sent, start = {"lengths": {"w": torch.arange(1.0, 5.0)}}, {"model": {"w": torch.ones(4, 3, 3)}}
    found = attackers(4, ATTACKS["scaled"](), 1.0).sent(everybody(4), start, sent, ())
    assert torch.equal(found["lengths"]["w"], 10 * sent["lengths"]["w"])


def test_what_is_a_difference_already_has_no_start():
    """SCAFFOLD is sent c and sends c_k' - c_k under one name."""
    sent, start = {"control": {"w": torch.ones(4, 3)}}, {"control": {"w": torch.full((4, 3), 7.0)}}
    found = attackers(4, ATTACKS["sign-flip"](), 1.0).sent(everybody(4), start, sent, SCAFFOLD.updates)
    assert torch.equal(found["control"]["w"], -torch.ones(4, 3))


def vectors(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 7)) * np.linspace(0.1, 3, 7) + rng.normal(size=7)


def lies(attack: Attack, n: int = 20, share: float = 0.3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(what attackers send less their start (a, d), honest updates (h, d), the attackers' own (a, d))."""
    x, start = vectors(n, seed), vectors(n, seed + 100)
    split = {"w": slice(0, 4), "b": slice(4, 7)}  # two tensors, one of rank 3
    stacks = [{k: torch.from_numpy(v[:, s]).reshape(n, *shape) for (k, s), shape in
               zip(split.items(), [(2, 2), (3,)], strict=True)} for v in (start, start + x)]  # fmt: skip
    some = attackers(n, attack, share)
    sent = some.sent(everybody(n), {"model": stacks[0]}, {"model": stacks[1]}, ())["model"]
    flat = torch.cat([sent[k].reshape(n, -1) for k in split], 1).numpy() - start
    hit = some.kinds.numpy() > 0
    assert np.allclose(flat[~hit], x[~hit])
    return flat[hit], x[~hit], x[hit]


@pytest.mark.parametrize("seed", range(3))
def test_attacks_by_statistics_agree_with_the_oracle(seed):
    for knows in ("own", "honest"):
        sent, honest, own = lies(ATTACKS["alie"](knows=knows), seed=seed)
        assert np.allclose(sent, oracle.alie({"own": own, "honest": honest}[knows], 20, 6), rtol=1e-9)
        sent, honest, own = lies(ATTACKS["ipm"](epsilon=2.0, knows=knows), seed=seed)
        assert np.allclose(sent, oracle.ipm({"own": own, "honest": honest}[knows], 2.0), rtol=1e-9)
    sent, honest, _ = lies(ATTACKS["alie"](z=1.5, knows="honest"), seed=seed)
    assert np.allclose(sent, honest.mean(0) - 1.5 * honest.std(0, ddof=1), rtol=1e-9)


@pytest.mark.parametrize("direction", ["std", "unit", "sign"])
@pytest.mark.parametrize("name", ["min-max", "min-sum"])
def test_the_closed_forms_agree_with_a_search(name, direction):
    search = {"min-max": oracle.min_max, "min-sum": oracle.min_sum}[name]
    for seed in range(3):
        for knows in ("own", "honest"):
            sent, honest, own = lies(ATTACKS[name](direction=direction, knows=knows), seed=seed)
            known = {"own": own, "honest": honest}[knows]
            assert np.allclose(sent, search(known, oracle.directions(known)[direction]), rtol=1e-6, atol=1e-6)


def test_the_deviations_of_alie_are_those_of_the_paper():
    """n = 50 with 24 attackers is the example of the paper, whose table of the normal distribution gives 1.43."""
    known = {(20, 2): 0.0, (20, 4): 0.157, (20, 6): 0.366, (20, 8): 0.674, (50, 10): 0.253, (100, 30): 0.524}
    for (clients, f), z in known.items():
        assert stealth(clients, f) == pytest.approx(z, abs=5e-4)
    assert all(0 <= stealth(20, f) < 3 for f in range(21))


def test_one_known_vector_is_repeated():
    """Its deviation is 0, and so is the room that it leaves."""
    for name in ("alie", "min-max", "min-sum"):
        sent, _, own = lies(ATTACKS[name](knows="own"), share=0.05)
        assert np.allclose(sent, own)
    alone = attackers(4, ATTACKS["ipm"](epsilon=1.0), 1.0)  # no honest client takes part: they know their own
    x = torch.from_numpy(vectors(4))
    found = alone.sent(everybody(4), {"model": {"w": torch.zeros_like(x)}}, {"model": {"w": x}}, ())
    assert torch.allclose(found["model"]["w"], -x.mean(0).expand(4, -1))


@pytest.mark.parametrize("seed", range(3))
def test_colluders_imitate_the_victims_neighbours(seed):
    """One model of all attackers: the oracle's Min-Max around the models nearest to the victim's."""
    n, rng = 20, np.random.default_rng(seed)
    start, x = rng.normal(size=(n, 7)), vectors(n, seed)
    some = attackers(n, ATTACKS["collusion"](), 0.3, seed)
    sent = some.sent(
        everybody(n), {"model": {"w": torch.from_numpy(start)}}, {"model": {"w": torch.from_numpy(start + x)}}, ()
    )["model"]["w"].numpy()
    hit = some.kinds.numpy() > 0
    assert not hit[some.victim]
    models = (start + x)[~hit]
    near = models[np.argsort(((models - (start + x)[some.victim]) ** 2).sum(1))[:5]]
    assert np.allclose(sent[hit], oracle.min_max(near, oracle.directions(near)["std"]), rtol=1e-6, atol=1e-6)
    assert np.allclose(sent[~hit], models)
    without = everybody(n).only(torch.arange(n) != some.victim)  # then attackers are honest
    rows = [{"model": {"w": torch.from_numpy(each)[without.ids]}} for each in (start, start + x)]
    assert torch.allclose(some.sent(without, *rows, ())["model"]["w"], rows[1]["model"]["w"])


def test_attackers_learn_nothing_from_models_that_are_not_finite():
    """An honest client that diverges is refused anyway; attackers go on with the others."""
    x = torch.from_numpy(vectors(10))
    some = attackers(10, ATTACKS["ipm"](), 0.2)
    lost = int(some.honest[0])
    x[lost, 3] = torch.nan
    found = some.sent(everybody(10), {"model": {"w": torch.zeros_like(x)}}, {"model": {"w": x}}, ())["model"]["w"]
    assert found[some.kinds > 0].isfinite().all()
    assert torch.allclose(found[some.kinds > 0], -0.5 * x[some.honest[1:]].mean(0).expand(2, -1))


# Parts of an upload need not be models: FedDWA+ and sketches send one number per client and layer.
UPLOADS = {name: ALGORITHMS[name]() for name in ANYWHERE} | {
    "feddwa-sketch": FedDWA(sketch=8),
    "feddwa-sketch-tensor": FedDWA(sketch=8, granularity="tensor"),
    "feddwa_plus-tensor": ALGORITHMS["feddwa_plus"](granularity="tensor"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UPLOADS)
@pytest.mark.parametrize("attack", ["scaled", "random", "alie", "collusion"])
def test_every_algorithm_lives_through_every_attack(name, attack):
    run = federation(UPLOADS[name], attacks={attack: 0.4}, participation=0.75)
    results = [run.step() for _ in range(2)]
    assert all(set(result.missing.values()) <= {updates.DIVERGED} for result in results)
    assert all(value.isfinite().all() for _, value in tensors(run.server) if value.is_floating_point())
    assert run.scores.loss[run.honest].isfinite().all()


def test_scores_are_those_of_honest_clients():
    run = federation(FedAvg(), attacks={"sign-flip": 0.25})
    result = run.step()
    hostile = run.attackers.kinds > 0
    assert hostile.sum() == 2
    for scores in (result.before, result.after, run.scores):
        assert scores.loss[hostile].isnan().all()
        assert scores.loss[~hostile].isfinite().all()
    assert torch.equal(run.evaluated, run.honest)
    sample = federation(FedAvg(), attacks={"sign-flip": 0.25}, eval_clients=3)
    assert len(sample.evaluated) == 3
    assert not hostile[sample.evaluated].any()
    sample.evaluate_all()
    assert torch.equal(sample.evaluated, run.honest)


def test_nobody_can_attack_local():
    hit, well = federation(Local(), attacks={"random": 0.5}), federation(Local())
    for _ in range(2):
        hit.step(), well.step()
    assert equal(hit.memory, well.memory)
    assert torch.equal(hit.scores.loss[hit.honest], well.scores.loss[hit.honest])


@pytest.mark.parametrize("chunk", [3, None])
@pytest.mark.parametrize("attack", ["random", "min-max"])
def test_backends_and_blocks_agree_on_attacks(attack, chunk):
    options = ({"chunk": chunk}, {"sequential": True})
    runs = [federation(FedDWA(top_k=3), conv_net, attacks={attack: 0.3}, **each) for each in options]
    for _ in range(2):
        for run in runs:
            run.step()
    for (_, a), (_, b) in zip(tensors(runs[0].server), tensors(runs[1].server), strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)


@dataclass(frozen=True)
class Constant(Attack):
    """An attack from outside the package."""

    summary = "sends one number"

    value: float = 2.0
    """The number."""

    def updates(self, seen: Seen) -> Stack:
        return {name: torch.full_like(own, self.value) - seen.start[name] for name, own in seen.own.items()}


def test_attacks_of_ones_own(capsys, tmp_path):
    reference = f"{__name__}:Constant"
    options = {"clients": 4, "rounds": 1, "algorithm": "fedavg", "out": str(tmp_path / "run")}
    result = feddwa.run(attack=f"{reference}=0.25", param=("value=3",), **options)
    who = Attackers(0, 4, ((Constant(), 0.25),)).kinds.nonzero().flatten().tolist()
    assert result.summary["attackers"] == {"Constant": who}
    assert "Constant.value=3.0" in (tmp_path / "run" / "config.toml").read_text()
    assert cli.main(["list", "attacks", reference]) == 0
    assert "value=2.0  The number." in capsys.readouterr().out


def test_the_summary_names_the_victim():
    result = feddwa.run(clients=6, rounds=1, attack="collusion=0.34", out=False)
    assert result.summary["victim"] == Attackers(0, 6, ((ATTACKS["collusion"](), 0.34),)).victim.item()
    assert result.summary["victim"] not in result.summary["attackers"]["collusion"]
    assert "victim" not in feddwa.run(clients=6, rounds=1, attack="alie=0.34", out=False).summary


def test_attacks_from_the_command_line_to_the_table(tmp_path, capsys):
    options = ["--clients", "10", "--rounds", "2", "--attack", "alie=0.2,scaled=0.1", "--param", "factor=3"]
    out = str(tmp_path / "r")
    assert cli.main(["compare", *options, "--algorithms", "feddwa", "local", "--out", out]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Attackers: alie=0.2,scaled=0.1. All numbers are those of the honest clients alone." in told
    assert "All numbers are those of the honest clients alone." in (tmp_path / "r" / "report.html").read_text()
    record = json.loads((tmp_path / "r" / "feddwa" / "record.json").read_text())
    hostile = [client for own in record["summary"]["attackers"].values() for client in own]
    assert len(hostile) == 3
    assert [record["clients"][client] for client in hostile] == [None] * 3
    honest = [value for value in record["clients"] if value is not None]
    assert len(honest) == 7
    assert record["series"]["before.all"][-1] == pytest.approx(np.mean(honest), abs=0.01)
    line = json.loads((tmp_path / "r" / "feddwa" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["evaluated"] == 7


def test_seeds_in_lockstep_are_the_runs_alone():
    options = {"clients": 6, "rounds": 2, "attack": "min-sum=0.34", "algorithm": "feddwa", "out": False}
    together = feddwa.run(seeds=(0, 1), **options)
    for seed in (0, 1):
        alone = feddwa.run(seed=seed, **options)
        assert together[seed].summary["attackers"] == alone.summary["attackers"]
        assert together[seed].metrics[-1]["loss_before"] == pytest.approx(alone.metrics[-1]["loss_before"], rel=1e-4)


def test_a_run_that_was_stopped_goes_on_under_the_same_attack(tmp_path, monkeypatch):
    options = {"clients": 6, "attack": "alie=0.34", "algorithm": "fedavg"}
    whole = feddwa.run(rounds=3, out=str(tmp_path / "whole"), **options)

    def killed(self):
        if self.round == 2:
            raise KeyboardInterrupt
        return step(self)

    step = Federation.step
    monkeypatch.setattr(Federation, "step", killed)
    with pytest.raises(KeyboardInterrupt):
        feddwa.run(rounds=3, out=str(tmp_path / "again"), **options)
    monkeypatch.setattr(Federation, "step", step)
    again = feddwa.resume(tmp_path / "again")
    assert [line["before"] for line in again.metrics] == [line["before"] for line in whole.metrics]


def test_flower_leaves_attacks_to_the_simulator():
    settings = pytest.importorskip("feddwa.flower.settings")
    with pytest.raises(InputError, match=r"--attack: got 'alie=0.2', must be left to the simulator"):
        settings.FlowerConfig(attack="alie=0.2").resolved()


def test_a_search_is_judged_by_honest_clients(tmp_path):
    """Trials have the scores of honest clients on held-out data, and of nobody else."""
    from feddwa.tune.trials import train

    options = {"clients": 6, "rounds": 1, "attack": "sign-flip=0.34", "algorithm": "fedavg", "validation": 0.2}
    config = feddwa.RunConfig(**options).resolved()
    task = load_task(config)
    (found,) = train([config], task, [1])
    run = feddwa.run(**options, out=False)
    assert found.curve[1] == pytest.approx(run.metrics[-1]["validation"]["all"], abs=0.01)


def test_noise_is_keyed_by_round_and_client():
    x = torch.zeros(4, 3, dtype=torch.float64) + 1
    some = attackers(4, ATTACKS["random"](), 1.0)

    def sent(cohort: Cohort) -> Tensor:
        rows = x[cohort.ids]
        return some.sent(cohort, {"model": {"w": rows}}, {"model": {"w": rows}}, ())["model"]["w"]

    first = sent(everybody(4))
    assert torch.equal(sent(everybody(4).only(torch.tensor([1, 3]))), first[[1, 3]])  # whoever else takes part
    later = Cohort(torch.arange(4), torch.full((4,), 10), 2, 4)
    assert not set(first.flatten().tolist()) & set(sent(later).flatten().tolist())


def digits(**options):
    config = RunConfig(clients=8, rounds=1, **options).resolved()
    task = load_task(config)
    return make_engine(config, task), Attackers(config.seed, 8, config.make_attacks())


def test_flipped_labels_are_those_of_attackers_training_samples():
    clean, _ = digits()
    engine, some = digits(attack="label-flip=0.25")
    hostile = {int(row) for client in (some.kinds > 0).nonzero() for row in clean.data.rows("train")[int(client)]}
    assert len(hostile) > 100
    for row, (old, new) in enumerate(zip(clean.data.y.tolist(), engine.data.y.tolist(), strict=True)):
        assert new == (9 - old if row in hostile else old)
    assert torch.equal(clean.data.x, engine.data.x)


def test_a_backdoor_is_in_some_training_images_of_attackers_and_in_a_split_of_its_own():
    clean, _ = digits()
    engine, some = digits(attack="backdoor=0.25", param=("target=3", "backdoor.share=0.25", "size=2"))
    before, after, total = clean.data, engine.data, len(clean.data.y)
    top = before.x.max()
    for client, rows in enumerate(before.rows("train")):
        changed = [row for row in rows if not torch.equal(before.x[row], after.x[row]) or before.y[row] != after.y[row]]
        assert all((after.x[row][:, -2:, -2:] == top).all() and after.y[row] == 3 for row in changed)
        if not some.kinds[client]:
            assert not changed
        else:  # an image of class 3 may have had the square before
            assert round(0.25 * len(rows)) - 3 <= len(changed) <= round(0.25 * len(rows))
    for own, tests in zip(after.rows("triggered"), before.rows("test"), strict=True):
        others = [row for row in tests if before.y[row] != 3]
        assert len(own) == len(others)
        for new, old in zip(own, others, strict=True):
            assert new >= total
            assert after.y[new] == 3
            assert torch.equal(after.x[new][:, :-2, :-2], before.x[old][:, :-2, :-2])
            assert (after.x[new][:, -2:, -2:] == top).all()
    assert torch.equal(after.x[:total][before.rows("test")[0]], before.x[before.rows("test")[0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"param": ("target=10",)}, "--param target: got 10, must be below 10"),
        ({"param": ("size=9",)}, "--param size: got 9, must be at most 8"),
        ({"param": ("backdoor.share=0",)}, "--param share: got 0.0, must be above 0"),
        ({"loss": "mse", "model": "mlp"}, "--attack backdoor: needs one class label per sample"),
    ],
)
def test_a_backdoor_that_does_not_fit_the_data_is_one_line(options, message):
    with pytest.raises(InputError, match=message):
        feddwa.run(attack="backdoor=0.2", clients=6, rounds=1, out=False, **options)
    series = [(np.zeros((20, 3), dtype=np.float32), np.arange(20) % 2) for _ in range(4)]
    with pytest.raises(InputError, match="--attack backdoor: needs images"):
        feddwa.run(dataset=series, attack="backdoor=0.25", rounds=1, out=False)


def test_a_backdoor_opens_and_only_for_those_who_know_it(tmp_path):
    """Ten rounds of FedAvg on equal data: the trigger calls up the class, without it everything is as before."""
    options = {"algorithm": "fedavg", "partition": "iid", "clients": 10, "rounds": 10, "device": "cpu"}
    plain = feddwa.run(**options, out=False)
    hit = feddwa.run(**options, attack="backdoor=0.3", out=str(tmp_path / "run"))
    assert hit.metrics[-1]["triggered"]["all"] > 60
    assert hit.metrics[0]["triggered"]["all"] < 30
    assert abs(hit.metrics[-1]["before"]["all"] - plain.metrics[-1]["before"]["all"]) < 6
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["series"]["triggered.all"] == [line["triggered"]["all"] for line in hit.metrics]
    flipped = feddwa.run(**options, attack="label-flip=0.3", out=False)
    assert "triggered" not in flipped.metrics[-1]
    assert flipped.metrics[-1]["before"]["all"] < plain.metrics[-1]["before"]["all"]


def test_tasks_that_are_poisoned_share_nothing_with_those_that_are_not():
    """Programs have the samples inside: a run after a poisoned one on the same data is what it would be alone."""
    dataset = load_dataset(RunConfig().resolved())
    options = {"clients": 6, "rounds": 1, "algorithm": "fedavg", "partition": "iid"}
    runs = {}
    for attack in ("", "label-flip=0.34", "backdoor=0.34", ""):
        config = RunConfig(**options, attack=attack).resolved()
        run = make_federation(config, make_engine(config, divided(config, dataset)))
        run.step()
        runs.setdefault(attack, []).append(run.server["model"])
    first, last = runs[""]
    assert all(torch.equal(first[name], last[name]) for name in first)
    assert not all(torch.equal(first[name], runs["label-flip=0.34"][0][name]) for name in first)


@pytest.mark.parametrize("attack", ["label-flip=0.34", "backdoor=0.34"])
def test_poisoned_seeds_in_lockstep_are_the_runs_alone(attack):
    options = {"clients": 6, "rounds": 2, "attack": attack, "algorithm": "fedavg", "out": False}
    together = feddwa.run(seeds=(0, 1), **options)
    for seed in (0, 1):
        alone = feddwa.run(seed=seed, **options).metrics[-1]
        assert together[seed].metrics[-1]["loss_before"] == pytest.approx(alone["loss_before"], rel=1e-4)
        assert together[seed].metrics[-1].get("triggered") == pytest.approx(alone.get("triggered"), abs=0.5)
