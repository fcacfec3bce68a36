"""Spreads, ties, gains and gaps, by hand; tables, figures and the page from small results."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from matplotlib.figure import Figure

from feddwa.algorithms import ALGORITHMS
from feddwa.config import RunConfig
from feddwa.results import checks, content
from feddwa.results.compare import Spread, difference, interval, tie
from feddwa.results.store import Store
from feddwa_reproduction import costs, page, specs, summary
from feddwa_reproduction.figures import draw, drawings
from feddwa_reproduction.reproduce import reproduce
from feddwa_reproduction.summary import gaps, leaders, rounds_until, summarise
from feddwa_reproduction.table import MISSING
from feddwa_reproduction.tables import _MAKERS, findings, tables_of
from feddwa_reproduction.verdict import extent_table, headline, places_table, verdict
from tests.reproduction.made import put

ROOT = Path(__file__).parents[2]
TABLE1 = specs.experiment("table1")
PATHOLOGICAL, PRACTICAL = TABLE1.select(["cifar10/pathological", "cifar10/practical1"]).columns
ROWS = {row.name: row for row in TABLE1.rows}


def published():
    """(file, line) of every published result."""
    for path in sorted((ROOT / "results").glob("*.jsonl")):
        for line in checks.read_lines(path, whole=True):
            yield path, line


def test_spreads_and_ties():
    a, b = Spread({0: 90.0, 1: 92.0, 2: 94.0}), Spread({0: 89.0, 1: 91.0, 2: 93.0})
    assert (a.mean, a.std, f"{a:.2f}") == (92.0, 2.0, "92.00 ± 2.00")
    assert f"{Spread({0: 1.0}):.2f}" == "1.00"
    assert not tie(a, b)  # one point in every seed, though each varies by two
    assert tie(a, Spread({0: 93.0, 1: 90.0, 2: 95.0}))
    assert not tie(Spread({0: 90.0}), Spread({0: 91.0}))  # one seed tells neither a tie nor a lead
    assert interval(Spread({0: 1.0})) is None
    assert not tie(a, Spread({3: 92.0}))


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_intervals_are_those_of_a_paired_t_test(n):
    """And a tie is where the test does not reject at 5 %."""
    rng = np.random.default_rng(n)
    for shift in (0.0, 0.5, 1.0, 3.0):
        a, b = rng.normal(shift, 1, n), rng.normal(0, 1, n)
        ours, theirs = (Spread(dict(enumerate(map(float, values)))) for values in (a, b))
        found = scipy.stats.ttest_rel(a, b)
        expected = found.confidence_interval(0.95)
        assert interval(difference(ours, theirs)) == pytest.approx((expected.low, expected.high), rel=1e-9)
        assert tie(ours, theirs) == (found.pvalue >= 0.05)


def test_the_same_spread_is_a_tie_on_three_seeds_and_a_lead_on_ten():
    """Mean 1.2, standard deviation 1: a lead of more than one standard deviation, which three seeds do not show."""
    few, many = (
        Spread({seed: 1.2 + sign * np.sqrt(n - 1) / np.sqrt(n - n % 2) for seed, sign in enumerate(signs)})
        for n, signs in ((3, (1, -1, 0)), (10, (1, -1) * 5))
    )
    zeros = Spread(dict.fromkeys(range(10), 0.0))
    assert few.std == pytest.approx(1) == pytest.approx(many.std)
    assert (tie(few, zeros), tie(many, zeros)) == (True, False)


def test_a_cell_in_numbers(tmp_path):
    store = Store(tmp_path)
    for seed in (0, 1):
        put(store, TABLE1, PATHOLOGICAL, ROWS["feddwa"], seed, [10, 91 + seed, 90], clients=[80, 70, 60])
        put(store, TABLE1, PATHOLOGICAL, ROWS["local"], seed, [10, 80, 85], clients=[70, 75, 30])
    found = summarise(TABLE1, PATHOLOGICAL, ROWS["feddwa"], store)
    assert (found.measured.mean, found.best.mean, found.last.mean) == (91.5, 91.5, 90)
    assert (found.gain.mean, found.gain.worst_tenth) == (pytest.approx(35 / 3), -5.0)
    assert found.gain.losers == pytest.approx(100 / 3)
    assert (found.mib, found.gflops, found.seconds) == (3.0, 3.0, 10.0)
    local = summarise(TABLE1, PATHOLOGICAL, ROWS["local"], store)
    assert local.gain is None
    assert leaders({ROWS["feddwa"]: found, ROWS["local"]: local}) == {"feddwa"}
    assert summarise(TABLE1, PATHOLOGICAL, ROWS["fedavg"], store) is None


def test_models_out_of_local_training_have_no_numbers_of_others(tmp_path):
    store, chosen = Store(tmp_path), specs.experiment("guidance-vs-personal")
    column = next(each for each in chosen.columns if each.name == "cifar10/practical1")
    guidance, personal = chosen.rows
    put(store, chosen, column, personal, 0, [10, 91, 90], clients=[80, 70, 60])
    after, before = (summarise(chosen, column, row, store) for row in (guidance, personal))
    assert (after.measured.mean, after.best, after.last, after.gain) == (92, None, None, None)
    assert (before.measured.mean, before.best.mean, before.last.mean) == (91, 91, 90)
    [detail] = [table for table in tables_of(chosen, store) if table.title == column.name]
    assert detail.rows[0][2:8] == ("92.00*", "", "", "", "", "")


def test_who_is_first_is_said_whoever_it_is(tmp_path):
    store = Store(tmp_path)
    for seed, noise in enumerate((0.0, 1.0, -1.0)):
        put(store, TABLE1, PATHOLOGICAL, ROWS["feddwa"], seed, [90 + noise])
        put(store, TABLE1, PATHOLOGICAL, ROWS["local"], seed, [80 + noise])
    assert findings(TABLE1, store) == [
        "cifar10/pathological: FedDWA is first, ahead of Local by 10.00 points (95 % CI 10.00 to 10.00, n = 3)."
    ]
    for seed, noise in enumerate((0.0, -1.0, 1.0)):
        put(store, TABLE1, PATHOLOGICAL, ROWS["fedamp"], seed, [90.2 + noise])
    told = "behind by 0.20 points (95 % CI -4.77 to 5.17, n = 3); seeds do not tell the two apart."
    assert findings(TABLE1, store)[0].endswith(f"FedAMP is first; FedDWA, number 2 of 3, is {told}")
    for seed in range(3):
        put(store, TABLE1, PATHOLOGICAL, ROWS["fedavg_ft"], seed, [95.0 + seed])
    told = "6.00 points (95 % CI 1.70 to 10.30, n = 3)"
    text = f"FedAvg_FT is first; FedDWA, number 3 of 4, is behind by {told}."
    assert findings(TABLE1, store)[0].endswith(text)
    assert text in page.section(TABLE1, store, [])


def test_rows_with_fewer_seeds_are_named_and_compared_on_those(tmp_path):
    store = Store(tmp_path)
    for seed, value in enumerate((90.0, 80.0, 70.0)):
        put(store, TABLE1, PATHOLOGICAL, ROWS["feddwa"], seed, [value])
        put(store, TABLE1, PATHOLOGICAL, ROWS["local"], seed, [value - 1])
    put(store, TABLE1, PATHOLOGICAL, ROWS["l2c"], 0, [91.5])
    put(store, TABLE1, PATHOLOGICAL, ROWS["fedamp"], 0, [89.0])  # above FedDWA's mean, below it on this seed
    put(store, TABLE1, PATHOLOGICAL, ROWS["sfl"], 10, [99.0])  # a seed that does not count
    text = "L2C is first; FedDWA, number 2 of 4, is behind by 1.50 points (one seed)."
    assert findings(TABLE1, store) == [f"cifar10/pathological: {text}"]
    [detail] = [table for table in tables_of(TABLE1, store) if table.title == PATHOLOGICAL.name]
    assert "Seeds 0, 1, 2; of FedAMP, L2C 0; a machine" in detail.note


def test_seconds_are_those_of_the_first_seed(tmp_path):
    """And what shared the device with it: later ones may have been run beside anything."""
    store = Store(tmp_path)
    for seed in range(4):
        put(store, TABLE1, PATHOLOGICAL, ROWS["feddwa"], seed, [90.0], costs={"seconds": 10.0 + seed, "jobs": 3 + seed})
        put(store, TABLE1, PATHOLOGICAL, ROWS["local"], seed, [90.0])
    [detail] = [table for table in tables_of(TABLE1, store) if table.title == PATHOLOGICAL.name]
    name, *_, seconds = detail.rows[-1]
    assert (name, seconds) == ("FedDWA", "10")
    assert detail.note.endswith(
        "Seeds 0 to 3; a machine, torch 2, float32; seconds with 1 or 3 stacks of runs at once."
    )


def test_one_value_is_no_sweep(tmp_path):
    """It was run for a table that has it, too."""
    store, sweep = Store(tmp_path), specs.experiment("figure-guidance-epochs")
    column, (one, two, *_) = sweep.columns[0], sweep.rows
    put(store, sweep, column, one, 0, [50, 60])
    assert not draw(sweep, store, tmp_path)
    assert [table.title for table in tables_of(sweep, store)] == ["figure-guidance-epochs at a glance, practical1"]
    put(store, sweep, column, two, 0, [50, 61])
    assert draw(sweep, store, tmp_path)
    assert tables_of(sweep, store)[-1].title == column.name


def test_a_sweep_tells_what_a_clients_own_model_weighs(tmp_path):
    store, sweep = Store(tmp_path), specs.experiment("figure-guidance-epochs")
    column, (one, two, *_) = sweep.columns[0], sweep.rows
    for seed, own in enumerate((800, 600)):
        kept = {"1": [[500, 500], [700, 300]], "100": [[own, 0], [0, 1000]]}
        put(store, sweep, column, one, seed, [50, 60], weights=kept)
        put(store, sweep, column, two, seed, [50, 61])  # of partial participation, say, whose weights are not kept
    table = tables_of(sweep, store)[-1]
    assert table.header == ("method", "round 1", "round 100")
    assert table.rows == [(one.label, "0.40", "0.85")]


def test_further_seeds_change_no_table(tmp_path):
    """They would be of other data: which seeds count is the column's matter, and that of who asks for fewer."""
    store = Store(tmp_path)
    for column in (PATHOLOGICAL, PRACTICAL):
        for seed in range(12):
            put(store, TABLE1, column, ROWS["feddwa"], seed, [80.0 + seed])
    assert summarise(TABLE1, PATHOLOGICAL, ROWS["feddwa"], store).measured.mean == 84.5
    assert summarise(TABLE1, PRACTICAL, ROWS["feddwa"], store).measured.mean == 81
    (column,) = TABLE1.select([PATHOLOGICAL.name], seeds=2).columns
    assert summarise(TABLE1, column, ROWS["feddwa"], store).measured.mean == 80.5


def test_the_spread_over_seeds(tmp_path):
    store, spread = Store(tmp_path), specs.experiment("seed-spread")
    for seed in range(5):
        put(store, TABLE1, PATHOLOGICAL, ROWS["feddwa"], seed, [90.0 + seed])
        put(store, TABLE1, PATHOLOGICAL, ROWS["local"], seed, [90.0])
    (table,) = tables_of(spread, store)
    assert ("FedDWA", "92.00 ± 1.58", "91.00 ± 1.00", "90.00", "94.00", "5", "92.97") in table.rows
    assert ("FedDWA less Local", "2.00 ± 1.58", "1.00 ± 1.00", "0.00", "4.00", "5", "") in table.rows
    assert ("FedAvg", MISSING, "", "", "", "", "59.97") in table.rows


def test_guidance_models_are_read_after_training(tmp_path):
    each = specs.experiment("guidance-vs-personal")
    store, (guidance, personal), column = Store(tmp_path), each.rows, each.columns[0]
    put(store, each, column, personal, 0, [50, 60])
    assert summarise(each, column, guidance, store).measured.mean == 61
    assert summarise(each, column, personal, store).measured.mean == 60


def test_gaps_want_a_reason(tmp_path, monkeypatch):
    store = Store(tmp_path)
    put(store, TABLE1, PATHOLOGICAL, ROWS["fedavg"], 0, [59.97 + 1.9])
    assert gaps(TABLE1, store) == []
    put(store, TABLE1, PATHOLOGICAL, ROWS["fedavg"], 0, [59.97 + 2.1])
    monkeypatch.setattr(summary, "_reasons", dict)
    (gap,) = gaps(TABLE1, store)
    assert (gap.row.name, gap.reason) == ("fedavg", None)
    text = "- No reason is known yet. (cifar10/pathological FedAvg 62.07 against 59.97)\n"
    assert text in page.section(TABLE1, store, [])
    reasons = {"table1": {"*": {"fedavg": "in all columns."}, "cifar10/pathological": {"*": "in this column."}}}
    monkeypatch.setattr(summary, "_reasons", lambda: reasons)
    assert gaps(TABLE1, store)[0].reason == "in all columns."
    reasons["table1"]["cifar10/pathological"]["fedavg"] = "here."
    assert gaps(TABLE1, store)[0].reason == "here."


def test_rounds_until_it_stays():
    assert rounds_until([0.2, 0.96, 0.9, 0.95, 1.0], 0.95) == 4
    assert rounds_until([1.0, 1.0], 0.95) == 1
    assert rounds_until([1.0, 0.9], 0.95) is None


def test_missing_cells_say_so(tmp_path):
    store = Store(tmp_path)
    put(store, TABLE1, PATHOLOGICAL, ROWS["feddwa"], 0, [92.0])
    text = page.section(TABLE1, store, [])
    assert "**92.00 / 92.97**" in text
    assert f"| {MISSING} / 59.97 |" in text  # FedAvg in the same column
    assert f"| emnist/pathological, {MISSING} |" in text
    assert "| FedDWA | / 97.37 |" in text
    for name in ("figure-similarity", "heatmaps"):
        assert MISSING in page.section(specs.experiment(name), store, [])


@pytest.mark.parametrize("name", ["curves", "guidance-choice"])
def test_a_legend_stays_inside_its_figure(name):
    (drawing,) = drawings(specs.experiment(name), Store(ROOT / "results"))
    figure = Figure(figsize=(drawing.width, drawing.height), layout="constrained")
    drawing.paint(figure)
    figure.canvas.draw()
    legend, (width, height) = figure.legends[0].get_window_extent(), figure.canvas.get_width_height()
    assert 0 <= legend.x0 < legend.x1 <= width
    assert 0 <= legend.y0 < legend.y1 <= height


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Everything that figures are drawn from, at smoke scale."""
    folder = tmp_path_factory.mktemp("smoke")
    for name in ("figure-similarity", "heatmaps", "figure-guidance-epochs", "guidance-vs-personal"):
        reproduce(name, results=folder, scale="smoke", tell=lambda text: None)
    return Store(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["figure-similarity", "heatmaps", "figure-guidance-epochs", "guidance-vs-personal"])
def test_figures_come_out_the_same(name, smoke, tmp_path):
    each = specs.experiment(name)
    first, again = (draw(each, smoke, tmp_path / place, "smoke") for place in ("a", "b"))
    assert first
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert all(len(path.read_bytes()) < 300_000 for path in first)


@pytest.mark.slow
def test_the_page_comes_out_the_same(tmp_path, monkeypatch):
    """From results of the paper's scale, of which some are there: twice, and from a copy in another place."""
    monkeypatch.setattr(costs, "communication", lambda dataset, method: costs.Traffic(4, 4, 8))
    monkeypatch.setattr(costs, "flops", lambda dataset, method: costs.Work(2.0, 5e11, 1e9, 9e8))
    store, copy = Store(tmp_path / "results"), tmp_path / "copy"
    for seed in (0, 1):
        put(store, TABLE1, PATHOLOGICAL, ROWS["feddwa"], seed, [90.0, 92.0 + seed])
    shutil.copytree(tmp_path / "results", copy)
    pages = [page.write_pages(source, tmp_path / place) for source, place in ((store, "a"), (Store(copy), "b"))]
    drawn = [path.name for path in pages[0] if path.suffix == ".svg"]
    assert drawn == ["guidance-choice.svg", "curves.svg"]
    assert [path.stem for path in pages[0] if path.suffix == ".md"] == ["reproduction", *specs.paper()]
    first, again = ([path.read_bytes() for path in paths] for paths in pages)
    assert first == again
    texts = {path.stem: text.decode() for path, text in zip(pages[0], first, strict=True) if path.suffix == ".md"}
    assert "92.50 ± 0.71" in texts["table1"]
    assert "(reproduction/table1.md) | 1 of 10 | 1 of 140" in texts["reproduction"]


@pytest.mark.parametrize("column", [PATHOLOGICAL, PRACTICAL], ids=lambda column: column.name)
@pytest.mark.parametrize(("method", "points"), [("feddwa", 1.5), ("fedavg", 2.5), ("local", 2.5)])
def test_the_published_results_are_near_the_papers(column, method, points):
    found = summarise(TABLE1, column, ROWS[method], Store(ROOT / "results"))
    assert tuple(found.records) == column.seeds
    assert abs(found.measured.mean - TABLE1.number(column, ROWS[method])) < points


@pytest.mark.slow
def test_the_published_page_is_what_the_results_give(tmp_path):
    """Text and figures; every gap over two points has its sentence. `feddwa reproduce docs` mends it."""
    written = page.write_pages(Store(ROOT / "results"), tmp_path)
    for path in written:
        if path.suffix == ".md":
            assert (ROOT / "docs" / path.relative_to(tmp_path)).read_text() == path.read_text()
    assert {path.name for path in written[1:]} == {path.name for path in (ROOT / "docs" / "reproduction").glob("*")}
    assert not [gap for each in specs.paper().values() for gap in gaps(each, Store(ROOT / "results")) if not gap.reason]


def test_the_verdict_counts_what_was_run(tmp_path):
    """Two of the paper's columns: FedDWA third of three in one, first of two in the other; three of five cells near."""
    store = Store(tmp_path)
    for seed, noise in enumerate((0.0, 0.1, -0.1)):
        for method, value in {"feddwa": 91.0, "local": 92.0, "fedavg": 93.0}.items():
            put(store, TABLE1, PATHOLOGICAL, ROWS[method], seed, [value + noise])
        for method, value in {"feddwa": 79.0, "local": 60.0}.items():
            put(store, TABLE1, PRACTICAL, ROWS[method], seed, [value + noise])
    put(store, TABLE1, TABLE1.select(["emnist-letters/pathological"]).columns[0], ROWS["feddwa"], 0, [99.0])
    found = verdict(store)
    assert (found.columns, found.cells, found.run, found.near, found.claimed) == (13, 178, 5, 3, 13)
    assert {name: (own.place, own.of) for name, own in found.places.items()} == {
        "cifar10/pathological": (3, 3), "cifar10/practical1": (1, 2)
    }  # fmt: skip
    told = headline(found)
    assert told.startswith(
        "**FedDWA is first in 1 of the 2 columns of Tables 1 and 2 that were run**; the paper has it"
    )
    assert (
        "Its places are 3 and 1 of 2 and 3 methods; in 0 of the columns the seeds do not tell it from the first."
        in told
    )
    assert "3 of the 5 cells that were run are within 2 points of the paper's number." in told
    assert "11 columns with 173 of the 178 cells were not run: emnist/pathological, cifar100/pathological, " in told
    row = ("cifar10/pathological", "FedAvg", "3 of 3", "2.00", "2.00 to 2.00", "3")
    assert places_table(found).rows[0] == row
    assert extent_table(store).rows[0] == (f"[{TABLE1.title}](reproduction/table1.md)", "3 of 10", "6 of 140")


def test_the_verdict_of_nothing(tmp_path):
    told = headline(verdict(Store(tmp_path)))
    assert told.startswith("**FedDWA is first in 0 of the 0 columns")
    assert "0 of the 0 cells that were run" in told


def test_the_readme_says_what_the_results_give():
    """`feddwa reproduce docs` mends it. Every column that was not run has its reason."""
    found = verdict(Store(ROOT / "results"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"<!-- reproduction -->\n{page.wrapped(headline(found))}\n<!-- end -->" in readme
    assert "no reason is known" not in headline(found)


@pytest.mark.slow
def test_a_marked_readme_beside_the_page_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "paper", dict)
    monkeypatch.setattr(page, "tuned_text", str)
    readme = tmp_path / "README.md"
    for text in ("# Mine\n", "# Mine\n<!-- reproduction -->\nold\n<!-- end -->\nmore\n"):
        readme.write_text(text, encoding="utf-8")
        page.write_pages(Store(tmp_path), tmp_path / "docs")
        new = page.wrapped(headline(verdict(Store(tmp_path))))
        assert readme.read_text(encoding="utf-8") == text.replace("old", new)


def test_published_results_are_of_a_commit():
    """Code with uncommitted changes cannot be found again. Every line tells commit, machine and versions."""
    for path, line in published():
        made, where = line["made"], f"{path.name}: {line['cell']}, seed {line['seed']}"
        assert re.fullmatch("[0-9a-f]{10}", made["commit"]), where
        assert made["dirty"] is False, where
        assert made["hardware"], where
        assert {"feddwa", "torch"} <= made["versions"].keys(), where


def test_published_results_follow_the_rules_that_hold_today():
    """FedAMP mixes the last cohort's uploads, and few classes come in equal amounts: results of before are gone."""
    for _, line in published():
        config = line["config"]
        if config["algorithm"] == "fedamp" and config["participation"] < 1:
            assert "fedamp.neighbours=cohort" in config["param"], line["cell"]
        if "pathological.variant=classes" in config["param"]:
            assert "pathological.amounts=equal" in config["param"], line["cell"]


@pytest.mark.slow
def test_published_results_are_sound():
    """Every line stands in the file of its dataset, sorted, under the name of what was run, once, and is small."""
    keys = {}
    for path, line in published():
        keys.setdefault(path, []).append((line["cell"], line["seed"]))
        options = {"defence": "none", **line["config"], "param": tuple(line["config"]["param"])}
        assert content.cell_name(RunConfig(**options)) == line["cell"]
        assert path.stem == line["config"]["dataset"]
        numbers = sum(len(weights) ** 2 for weights in line.get("weights", {}).values())
        # a round has three numbers of some six characters, a weight is a digit or two and a comma
        assert len(json.dumps(line)) < 5_500 + 25 * line["config"]["rounds"] + 5 * numbers, line["cell"]
    assert sum(map(len, keys.values())) > 1_900
    for own in keys.values():
        assert own == sorted(set(own))


def test_weights_are_published_where_a_figure_or_table_needs_them():
    """And nowhere else: they would be most of the bytes."""
    keeping = [each for each in specs.experiments().values() if each.keep_weights]
    cells = {content.cell_name(each.config(column, row)) for each in keeping for column, row in each.cells()}
    assert {line["cell"] for _, line in published() if "weights" in line} <= cells


def test_every_kind_of_entry_has_its_tables():
    assert set(_MAKERS) == set(specs.KINDS)


@pytest.mark.slow
def test_communication_is_the_papers():
    """Model sizes that cross, and MiB beside the paper's numbers, which are multiples of a rounded 4.77."""
    each = specs.experiment("communication")
    for method, models in {"fedavg": 2, "fedfomo": 6, "l2c": 21, "feddwa": 3}.items():
        traffic = costs.communication("cifar100", method)
        assert traffic.models == pytest.approx(models, abs=2e-4)  # scores and ids besides
        assert traffic.mib == pytest.approx(each.published["cifar100", method], rel=1e-3)
    assert costs.communication("tiny-imagenet-32", "feddwa").mib == pytest.approx(3 * 0.3448, abs=1e-3)
    assert costs.communication("tiny-imagenet-32", "local").mib == 0


@pytest.mark.slow
def test_flops_are_the_papers():
    """In the paper's convention; FedFomo judges seven models where the paper counts five, L2C takes one gradient."""
    each, passes = specs.experiment("flops"), {"fedavg": 1, "fedamp": 1, "feddwa": 2, "fedfomo": 2.2, "l2c": 1}
    for method, expected in passes.items():
        work = costs.flops("cifar10", method)
        assert work.passes == pytest.approx(expected)
        assert work.paper == pytest.approx(expected * 5_077_376 * 50_000)
        if method in ("fedavg", "fedamp", "feddwa"):
            assert work.paper == pytest.approx(each.published["cifar10", method], rel=0.02)
    for method, counted in specs.paper_passes().items():
        printed = each.published["cifar10", method]
        assert float(f"{counted * 5_077_376 * 50_000:.1e}") == printed
    pairs = 20 * 20 * 1_204_874  # multiply-adds of all distances; the paper says about 1e8, and 1e11 for training
    assert costs.flops("cifar10", "feddwa").server == 2 * pairs  # as many to mix
    assert costs.flops("cifar10", "fedavg").server == 20 * 1_204_874
    forward = 2 * 5_077_376 * 2_500
    first_layer = 2 * 777_600 * 2_500  # the gradient of the images is not needed
    assert costs.flops("cifar10", "fedavg").client == pytest.approx(3 * forward - first_layer)


def test_the_toy_example():
    example = costs.toy()
    assert [value for _, value in example.candidates].count(0.0) == 4
    assert example.simplified.tolist() == [0.5, 0.5, 0.0]
    assert example.value == 0
    assert len(tables_of(specs.experiment("toy"), Store(Path("nowhere")))[0].rows) == 6


def test_the_tables_of_costs_name_all_methods(monkeypatch):
    monkeypatch.setattr(costs, "communication", lambda dataset, method: costs.Traffic(4, 4, 8))
    monkeypatch.setattr(costs, "flops", lambda dataset, method: costs.Work(2.0, 5e11, 1e9, 9e8))
    for name in ("communication", "flops"):
        (table,) = tables_of(specs.experiment(name), Store(Path("nowhere")))
        assert [row[0] for row in table.rows] == [ALGORITHMS[method].title for method in specs.methods()]
