"""A real browser opens a report of real runs and uses everything on it; pictures of it are kept in build/browser.

`make browser` installs what is needed and runs this. FEDDWA_BROWSER names a Chromium elsewhere.
"""

import csv
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import feddwa
from feddwa import cli
from feddwa.config import RunConfig
from feddwa.data.describe import Description
from feddwa.report.page import write_report
from feddwa.results import units
from feddwa.results.record import Record, read
from feddwa.results.weights import Weights

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; make browser installs it")

expect = playwright.expect
PICTURES = Path(__file__).parents[2] / "build" / "browser"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIGHT, DARK = "rgb(246, 247, 249)", "rgb(15, 20, 27)"  # --page in report.css


def _program() -> str | None:
    """A Chromium of this machine; None = perhaps one that playwright has installed."""
    return os.environ.get("FEDDWA_BROWSER") or next((found for name in NAMES if (found := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as tools:
        try:
            program = tools.chromium.launch(executable_path=_program(), args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}; make browser installs one")
        yield program
        program.close()


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(read([runs]), path)
    return path


@pytest.fixture
def open_page(browser, report):
    """Opens the report; in the end nothing may have been complained of or fetched."""
    complaints, requests, contexts = [], [], []

    def open_(width=1280, height=900, scheme="light", path=report):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
    assert {url for url in requests if not url.startswith("blob:")} <= {
        url for url in requests if url.startswith("file:")
    }
    assert len(requests) == len(contexts)  # the file itself, and nothing more


def keep(page, name, **options):
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", **options)


def option(page, chart):
    """What ECharts has drawn."""
    return page.evaluate(f"echarts.getInstanceByDom(document.getElementById('{chart}')).getOption()")


def lines(page):
    return [each["name"] for each in option(page, "curves-chart")["series"] if each["name"] != "band"]


def place(page, chart, x, y):
    """Pixels of a point of a chart."""
    finder = f"echarts.getInstanceByDom(document.getElementById('{chart}'))"
    dx, dy = page.evaluate(f"{finder}.convertToPixel({{xAxisIndex: 0, yAxisIndex: 0}}, [{x}, {y}])")
    page.locator(f"#{chart}").scroll_into_view_if_needed()
    box = page.locator(f"#{chart}").bounding_box()
    return box["x"] + dx, box["y"] + dy


def test_the_first_look_says_whether_it_paid(open_page):
    page = open_page()
    assert re.fullmatch(
        r"FedDWA leads with .*: .* points over training alone .*; \d+ of 16 clients gained by joining, in 2 seeds\.",
        page.inner_text("h1"),
    )
    charts = page.locator(".chart").count()
    assert charts == page.locator(".chart:has(canvas)").count() + 1 == 14  # all but that of who was missing
    keep(page, "light", full_page=True)


def test_clients_are_called_by_their_names(open_page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["hospital-1", "hospital-3", "<b>hospital"]
    rows = "".join(f"{i % 7},{i % 2},{names[i % 3]}\n" for i in range(60))
    Path("own.csv").write_text("a,label,client\n" + rows)
    feddwa.run(dataset="own.csv", rounds=1, out="run")
    write_report(read(["run"]), "report.html")
    page = open_page(path=Path("report.html").absolute())
    options = "[...document.querySelectorAll('#names option')].map((each) => each.value)"
    assert page.evaluate(options) == sorted(names)
    search(page, "hospital-1")
    assert page.inner_text("#client-facts").startswith("client hospital-1, 16 training and 4 test samples")
    assert "client hospital-3" in page.inner_text("#partners")
    search(page, "AL-3")  # part of a name
    assert page.inner_text("#client-facts").startswith("client hospital-3, ")
    search(page, "clinic")
    assert page.inner_text("#unknown") == "no client has “clinic” in its name"
    page.select_option("#order", "name")
    assert option(page, "map-chart")["xAxis"][0]["data"] == ["0", "1", "2"]  # the data order clients by name already


def search(page, name):
    page.fill("#client", name)
    page.keyboard.press("Enter")


def test_methods_are_switched_on_and_off(open_page):
    page = open_page()
    assert set(lines(page)) == {"FedDWA", "Local", "FedAvg", "guessing"}
    button = page.get_by_role("button", name="FedAvg")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert set(lines(page)) == {"FedDWA", "Local", "guessing"}
    page.click("#all-methods")
    assert len(lines(page)) == 4
    page.click("#all-methods")
    assert lines(page) == []


def test_bands_over_seeds_losses_and_costs(open_page):
    page = open_page()
    assert page.input_value("#band") == "seeds"
    assert "guessing" in lines(page)
    page.select_option("#band", "none")
    assert lines(page) == [each["name"] for each in option(page, "curves-chart")["series"]]
    accuracy = option(page, "curves-chart")["series"][0]["data"]
    page.select_option("#shown", "loss")
    assert "guessing" not in lines(page)
    loss = option(page, "curves-chart")["series"][0]["data"]
    assert loss[0][1] == pytest.approx(2.3, abs=0.3)
    assert loss[-1][1] < loss[0][1]
    page.select_option("#shown", "accuracy")
    for cost in ("bytes", "flops", "seconds"):
        page.select_option("#against", cost)
        points = option(page, "curves-chart")["series"][0]["data"]
        assert [y for _, y in points] == [y for _, y in accuracy]
        assert [x for x, _ in points] == sorted(x for x, _ in points)
        assert points[-1][0] > (0 if cost == "seconds" else 6)
    page.locator("#curves-chart").scroll_into_view_if_needed()
    keep(page, "costs")


def test_all_clients_stand_in_the_distribution(open_page, runs):
    page = open_page()
    chart = {each["name"]: each["data"] for each in option(page, "clients-chart")["series"]}
    final = [read([runs / seed / "feddwa"])[0].final for seed in "01"]
    assert [y for _, y in chart["FedDWA"]] == pytest.approx(np.sort(np.concatenate(final)), abs=0.01)


def saved(page, chart):
    """The rows of the CSV file under a chart."""
    with page.expect_download() as download:
        page.click(f"#{chart} + .csv")
    with Path(download.value.path()).open(newline="") as file:
        return list(csv.reader(file))


def test_every_chart_gives_its_numbers_as_csv(open_page, runs):
    page = open_page()
    charts = page.evaluate("[...document.querySelectorAll('.chart:has(canvas)')].map((each) => each.id)")
    assert len(charts) == 13
    for chart in charts:
        if chart != "graph-chart":  # it has the numbers of the map
            assert len(saved(page, chart)) > 3, chart
            page.wait_for_timeout(200)  # Chromium drops the eleventh download of a second
    record = read([runs / "0" / "feddwa"])[0]
    head, *rows = saved(page, "clients-chart")
    own = [dict(zip(head, row, strict=True)) for row in rows]
    found = [float(row["accuracy"]) for row in own if (row["method"], row["seed"]) == ("FedDWA", "0")]
    assert found == pytest.approx(record.final)
    _, head, *rows = saved(page, "curves-chart")
    assert head[:2] == ["method", "finished rounds"]
    assert len(rows) == 3 * 7


def test_numbers_end_in_the_digit_that_python_gives(open_page):
    page = open_page()
    values = [*np.random.default_rng(0).uniform(-100, 100, 300).round(3), *np.arange(-4, 4, 0.125), 81.25, 0.15, 2.675]
    for digits in (0, 1, 2):
        told = page.evaluate(f"(values) => values.map((value) => fixed(value, {digits}))", [float(v) for v in values])
        assert [float(each) for each in told] == [float(f"{value:.{digits}f}") for value in values]
    sizes = [0, 1, 1023, 1024, 57754, 5 * 1024**2 + 1, 3e12]
    assert page.evaluate("(sizes) => sizes.map(bytes)", sizes) == [units.human_bytes(round(size)) for size in sizes]
    spans = [0.04, 0.25, 1.05, 59.9, 60, 75.5, 119.6, 3600, 7384]
    assert page.evaluate("(spans) => spans.map(time)", spans) == [units.human_seconds(span) for span in spans]


def test_pointing_at_the_curves_tells_their_values(open_page):
    page = open_page()
    page.mouse.move(*place(page, "curves-chart", 3, 40))
    tip = page.locator("#curves-chart .tip")
    tip.wait_for()
    assert tip.inner_text().startswith("after round 3")
    assert re.search(r"FedDWA\s+\d+\.\d %", tip.inner_text())
    keep(page, "hover")


def test_the_slider_moves_through_the_rounds(open_page):
    page = open_page()
    slider = page.locator("#round")
    assert page.inner_text("#round-text") == "after round 6 of 6"
    before = squares(page, 8)
    slider.focus()
    page.keyboard.press("Home")
    assert page.inner_text("#round-text") == "after round 1 of 6"
    assert slider.get_attribute("aria-valuetext") == "after round 1 of 6"
    assert squares(page, 8) != before
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#round-text") == "after round 2 of 6"
    assert option(page, "flow-chart")["series"][0]["markLine"]["data"][0]["xAxis"] == 2


def test_the_rounds_play_and_stop_at_the_end(open_page):
    page = open_page()
    page.evaluate(  # pauses at once: a click of ours may come too late where the machine is busy
        "new MutationObserver((_, observer) => $('round-text').textContent.startsWith('after round 3') &&"
        "(observer.disconnect(), $('play').click())).observe($('round-text'), { childList: true })"
    )
    page.click("#play")
    expect(page.locator("#round-text")).to_have_text("after round 3 of 6", timeout=30_000)
    expect(page.locator("#play")).to_contain_text("Play")
    page.wait_for_timeout(1000)
    assert page.inner_text("#round-text") == "after round 3 of 6"
    page.click("#play")
    expect(page.locator("#play")).to_contain_text("Play", timeout=30_000)
    assert page.inner_text("#round-text") == "after round 6 of 6"


def test_the_map_shows_the_weights_that_were_stored(open_page, runs):
    page = open_page()
    weights = read([runs / "0" / "feddwa"])[0].weights[-1].matrix
    for (i, j), text in squares(page, 8).items():
        assert f"new model of client {i}\nfrom client {j}" in text
        assert float(text.split()[-2]) == pytest.approx(100 * weights[i, j], abs=0.5)


def squares(page, clients):
    """(row, column) -> what the map tells where one points at that square."""
    found = {}
    for i in range(clients):
        for j in range(clients):  # rows count from the bottom of the picture
            page.mouse.move(*place(page, "map-chart", j, clients - 1 - i))
            found[i, j] = page.inner_text("#map-chart .float")
    return found


def test_a_click_on_a_client_shows_its_partners_data_and_curve(open_page):
    page = open_page()
    page.mouse.click(*place(page, "map-chart", 2, 8 - 1 - 5))  # row of client 5
    assert page.input_value("#client") == "5"
    assert page.inner_text("#client-facts").startswith("client 5 (group 2, images turned by 90°), ")
    assert "itself" in page.inner_text("#partners")
    assert page.locator("#partners li").count() == 3  # top_k
    assert len(option(page, "client-curve")["series"]) == 3  # under every method
    assert page.locator("#client-table tbody tr").count() == 3
    assert option(page, "client-partners")["series"][0]["name"] == "itself"
    totals = np.sum([[y for _, y in each["data"]] for each in option(page, "client-partners")["series"]], axis=0)
    assert totals == pytest.approx(100, abs=1.5)  # in every round
    assert sum(option(page, "client-data")["series"][0]["data"]) > 100
    search(page, "1")  # by keyboard, too
    assert page.inner_text("#client-facts").startswith("client 1 (group 1, ")
    page.locator("#one").scroll_into_view_if_needed()
    keep(page, "client")


def test_a_click_on_the_graph_chooses_a_client(open_page):
    page = open_page()
    page.locator("#graph-chart").scroll_into_view_if_needed()
    node = page.evaluate(
        "(() => { const c = echarts.getInstanceByDom(document.getElementById('graph-chart'));"
        "const d = c.getModel().getSeriesByIndex(0).getData(); const i = d.indexOfName('6');"
        "const g = d.getItemGraphicEl(i); const p = g.transformCoordToGlobal(0, 0); return p; })()"
    )
    box = page.locator("#graph-chart").bounding_box()
    page.mouse.click(box["x"] + node[0], box["y"] + node[1])
    assert page.input_value("#client") == "6"


def test_clients_are_ordered_by_group_cluster_or_number(open_page):
    page = open_page()
    for way in ("number", "cluster", "group"):
        page.select_option("#order", way)
        assert sorted(map(int, option(page, "map-chart")["xAxis"][0]["data"])) == list(range(8))
    page.select_option("#run", label="FedAvg, seed 1")
    assert "discovered cluster (1)" in page.inner_text("#order")


def test_the_gain_of_another_run(open_page):
    page = open_page()
    first = page.inner_text("#gain-note")
    assert "With FedDWA, seed 0" in first
    page.select_option("#gain-run", label="FedAvg, seed 1")
    assert "With FedAvg, seed 1" in page.inner_text("#gain-note")
    assert len(option(page, "gain-chart")["series"][0]["data"]) == 8


def test_dark_by_wish_of_the_system_and_by_button(open_page):
    page = open_page(scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == DARK
    keep(page, "dark", full_page=True)
    ink = option(page, "curves-chart")["textStyle"]["color"]
    page.click("#theme")
    assert page.evaluate(background) == LIGHT
    assert option(page, "curves-chart")["textStyle"]["color"] != ink  # the charts go along
    page.emulate_media(color_scheme="light")
    page.wait_for_timeout(300)  # or the browser sees no change at all
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_a_phone_shows_all_of_it(open_page):
    page = open_page(width=360, height=740)
    assert page.evaluate("document.documentElement.scrollWidth") == 360  # nothing sticks out
    for chart in ("curves-chart", "map-chart", "graph-chart", "gain-chart", "pareto-bytes"):
        box = page.locator(f"#{chart}").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
        assert box["height"] > 150
    keep(page, "phone", full_page=True)
    table = page.locator("#costs .scroll")
    assert table.evaluate("(each) => each.scrollWidth > each.clientWidth")
    table.evaluate("(each) => each.scrollTo(9999, 0)")
    first = page.locator("#costs td:first-child").first.bounding_box()
    assert first["x"] == pytest.approx(table.bounding_box()["x"], abs=1)  # the method's name stays


def test_on_paper_charts_are_light_and_have_legends(open_page):
    page = open_page(scheme="dark")
    page.get_by_role("button", name="FedAvg").click()
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.is_visible("#methods >> text=FedDWA")  # the legend of the curves
    assert not page.is_visible("#methods >> text=FedAvg")  # it is not drawn
    assert not page.is_visible("#play")
    assert not page.is_visible(".csv >> nth=0")
    for chart in ("curves-chart", "map-chart"):
        assert page.locator(f"#{chart}").bounding_box()["width"] <= 690  # 180 mm
    keep(page, "print", full_page=True)
    page.emulate_media(media="screen", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.pdf().startswith(b"%PDF")


def test_everything_is_reached_by_keyboard_and_has_a_name(open_page):
    page = open_page()
    reached = set()
    for _ in range(90):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert {
        "theme",
        "band",
        "run",
        "order",
        "play",
        "round",
        "client",
        "client-run",
        "closer",
        "against",
        "gain-run",
        "data-seed",
        "FedDWA",
    } <= reached
    nameless = page.evaluate(
        "[...document.querySelectorAll('select, input, button, [role=img]')].filter((each) =>"
        "!(each.ariaLabel || each.closest('label') || each.textContent.trim())).map((each) => each.id)"
    )
    assert nameless == []


def test_what_a_report_lacks_it_says(open_page, runs, absent, tmp_path):
    write_report(read([absent]), tmp_path / "absent.html")
    page = open_page(path=tmp_path / "absent.html")
    assert "a run of Local" in page.inner_text("#gain-note")
    assert "4 clients took no part in this round" in page.inner_text("#explorer-note")
    present = next(c for c in range(8) if c not in read([absent])[0].weights[-1].cohort)
    search(page, str(present))
    assert "took no part" in page.inner_text("#partners")


def test_the_best_method_is_shown_first_whichever_it_is(open_page, tmp_path):
    """Where all clients have the same task, one model for all is the best."""
    for name in ("feddwa", "local", "fedavg"):
        feddwa.run(algorithm=name, clients=8, rounds=8, partition="iid", out=str(tmp_path / name))
    write_report(read([tmp_path]), tmp_path / "r.html")
    page = open_page(path=tmp_path / "r.html")
    assert page.inner_text("h1").startswith("FedAvg leads with")
    assert page.locator("#run option:checked").inner_text() == "FedAvg"
    assert "With FedAvg" in page.inner_text("#gain-note")
    widths = {
        each["name"]: each["lineStyle"]["width"] for each in option(page, "curves-chart")["series"] if each["data"]
    }
    assert widths == {"FedAvg": 3, "FedDWA": 2, "Local": 2}


def test_a_comparison_in_which_nothing_trained(open_page, tmp_path):
    for name in ("feddwa", "local", "fedavg"):
        feddwa.run(algorithm=name, clients=8, rounds=5, lr=1e6, out=str(tmp_path / name))
    write_report(read([tmp_path]), tmp_path / "r.html")
    page = open_page(path=tmp_path / "r.html")
    assert page.inner_text("h1").startswith("FedAvg and FedDWA: nothing was trained")
    assert "FedAvg (went wrong)" in page.inner_text("#methods")
    assert page.locator("h1.wrong").count() == 1
    assert page.locator(".card").count() == 0
    assert "neither may have failed" in page.inner_text("#gain-note")
    assert not page.is_visible("#pareto-bytes")
    keep(page, "wrong", full_page=True)


def test_links_that_nobody_can_tell_apart_are_not_drawn(open_page, tmp_path):
    many = 60
    weights = [Weights(1, np.arange(many), np.full((many, many), 1 / many))]
    lines = [{"round": i, "before": {"all": 50.0}, "loss_before": 1.0} for i in (1, 2)]
    config = RunConfig(algorithm="fedavg", clients=many).resolved()
    write_report([Record(tmp_path, config, lines, np.full((2, many), 50.0), weights, None, True)], tmp_path / "r.html")
    page = open_page(path=tmp_path / "r.html")
    assert "too many links to draw" in page.inner_text("#explorer-note")
    assert {link["target"] for link in option(page, "graph-chart")["series"][0]["links"]} == {"0"}


def many(tmp_path, clients, rounds, finished=True):
    """Three methods of so many clients in four groups, with weights like those of FedDWA."""
    rng, groups = np.random.default_rng(0), np.arange(clients) % 4
    counts = np.full((clients, 10), 3)
    part = Description(counts, counts, tuple(map(str, range(10))), groups, None, None)
    part = dataclasses.replace(part, client_names=tuple(f"phone-{i:04d}" for i in range(clients)))
    records = []
    for k, name in enumerate(("feddwa", "local", "fedavg")):
        config = RunConfig(algorithm=name, clients=clients, rounds=rounds).resolved()
        scores = np.clip(rng.normal(60, 15, clients) + 3.0 * np.arange(rounds + 1)[:, None] - 5 * k, 0, 100).round(2)
        costs = {"participants": clients, "bytes_up": 9, "bytes_down": 9, "flops": 9, "seconds": {"train": 0.1 + k}}
        lines = [
            {"round": i + 1, "before": {"all": own.mean()}, "loss_before": 2 / (i + 1), **costs}
            for i, own in enumerate(scores)
        ]
        kin = rng.random((clients, clients)) * (groups[:, None] == groups)
        matrix = {"local": np.eye(clients), "fedavg": np.full((clients, clients), 1 / clients)}.get(name, kin)
        matrix = (matrix / matrix.sum(axis=1, keepdims=True)).astype(np.float32)
        weights = [Weights(i, np.arange(clients), matrix) for i in range(1, rounds + 1)]
        records.append(Record(tmp_path, config, lines, scores, weights, part, finished))
    return records


@pytest.mark.parametrize("clients", [100, 1000])
def test_every_square_of_a_crowd_reacts(open_page, tmp_path, clients):
    records = many(tmp_path, clients, 3)
    write_report(records, tmp_path / "r.html")
    page = open_page(path=tmp_path / "r.html")
    keep(page, f"clients-{clients}", full_page=True)
    page.select_option("#run", "FedDWA")
    search(page, "phone-0042")
    assert page.inner_text("#client-facts").startswith("client phone-0042 (group 3), 30 training and 30 test samples")
    for way in ("number", "name", "group"):
        page.select_option("#order", way)
        order = list(map(int, option(page, "map-chart")["xAxis"][0]["data"]))
        groups = [client % 4 for client in order]
        assert (order == sorted(order)) if way != "group" else (groups == sorted(groups))
    while option(page, "map-chart")["dataZoom"][0]["end"] - option(page, "map-chart")["dataZoom"][0]["start"] > 20:
        page.click("#closer")
    where = order.index(42)
    for column in (where - 1, where, where + 1):  # neighbours that are a pixel or less apart where all is seen
        page.mouse.move(*place(page, "map-chart", column, clients - 1 - where))
        text = page.inner_text("#map-chart .float")
        assert f"new model of client phone-0042\nfrom client phone-{order[column]:04d}" in text
        weight = records[0].weights[-1].matrix[42, order[column]]
        told = float(text.split()[-2])
        assert (told >= 100 * weight - 0.3) if "at most" in text else told == pytest.approx(100 * weight, abs=0.3)
    keep(page, f"map-{clients}")
    page.mouse.click(*place(page, "map-chart", where, clients - 2 - where))
    assert page.input_value("#client") == f"phone-{order[where + 1]:04d}"
    page.click("#whole")
    assert option(page, "map-chart")["dataZoom"][0]["start"] == 0
    line = {each["name"]: each["data"] for each in option(page, "clients-chart")["series"]}["FedDWA"]
    assert len(line) == clients  # everybody, not four percentiles
    gained = re.search(r"(\d+) of \d+ clients gained", page.inner_text("h1"))[1]
    assert f"{gained} of {clients} clients gained" in page.inner_text("#gain-note")


def test_an_interrupted_run_is_marked_everywhere(open_page, tmp_path):
    done, other, cut = many(tmp_path, 20, 8)
    best = np.minimum(cut.scores[:4] + 40, 100)
    cut = dataclasses.replace(cut, lines=cut.lines[:4], scores=best, weights=cut.weights[:3])
    write_report([done, other, dataclasses.replace(cut, finished=False)], tmp_path / "r.html")
    page = open_page(path=tmp_path / "r.html")
    mark = "FedAvg (stopped after round 3 of 8)"
    assert page.inner_text("h1").startswith("FedDWA leads")
    assert mark in page.inner_text("#methods")
    assert mark in page.inner_text("#run")
    assert mark in page.inner_text("#client-table")
    assert "stopped after round 3 of 8" in page.inner_text("#costs")
    assert "stopped after round 3 of 8" in page.inner_text(".warnings")
    assert option(page, "curves-chart")["series"][2]["markPoint"]["label"]["formatter"] == "stopped after round 3 of 8"
    for chart in ("pareto-bytes", "pareto-flops", "pareto-seconds"):
        assert {each["label"]["formatter"] for each in option(page, chart)["series"][1]["data"]} == {"FedDWA", "Local"}
    keep(page, "interrupted", full_page=True)


def test_who_was_missing_is_drawn_and_named(open_page, tmp_path):
    feddwa.run(clients=6, rounds=4, fault="dropout=0.4", out=str(tmp_path / "run"))
    write_report(read([tmp_path / "run"]), tmp_path / "r.html")
    page = open_page(path=tmp_path / "r.html")
    last = read([tmp_path / "run"])[0].lines[-2]["missing"]["dropout"]
    assert page.inner_text("#presence-last").endswith(", ".join(map(str, last)))
    counted, missing = (each["data"] for each in option(page, "presence-chart")["series"])
    assert [one + two for one, two in zip(counted, missing, strict=True)] == [6] * 4


def test_a_report_of_several_settings_is_filtered_and_compared(open_page, runs, tmp_path):
    feddwa.run(clients=4, rounds=2, partition="iid", out=str(tmp_path / "iid"))
    assert cli.main(["report", str(tmp_path), str(runs / "0"), "-o", str(tmp_path / "r.html")]) == 0
    page = open_page(path=tmp_path / "r.html")
    assert page.locator("#listing tbody tr:visible").count() == 4
    page.select_option("#by-method", "FedDWA")
    assert page.locator("#listing tbody tr:visible").count() == 2
    page.click("#all-shown")
    assert len(option(page, "compared-chart")["series"]) == 2
    page.select_option("#by-setting", label="iid, 4 clients")
    assert page.locator("#listing tbody tr:visible").count() == 1
    keep(page, "index")
    href = page.locator("#listing tbody tr:visible a").get_attribute("href")
    assert (tmp_path / href).is_file()


def test_a_run_is_watched_while_it_goes(browser, tmp_path):
    """A real `feddwa watch` beside a real run: the page draws new rounds without being loaded again."""
    command = [sys.executable, "-m", "feddwa"]
    watch = subprocess.Popen([*command, "watch", str(tmp_path)], stdout=subprocess.PIPE, text=True)
    context = browser.new_context()
    run = None
    try:
        address = watch.stdout.readline().strip()
        page = context.new_page()
        complaints = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        expect(page.locator("h1")).to_have_text("Waiting for a run")
        run = subprocess.Popen([*command, "run", "--rounds", "60", "--out", str(tmp_path / "run"), "--quiet"])
        expect(page.locator("h1")).to_contain_text("running, after round", timeout=120_000)
        page.evaluate("window.kept = true")  # would be gone if the page were loaded again
        page.select_option("#shown", "loss")
        first = len(option(page, "curves-chart")["series"][0]["data"])
        keep(page, "watch")
        run.wait(timeout=200)
        expect(page.locator("h1")).not_to_contain_text("running", timeout=60_000)
        assert len(option(page, "curves-chart")["series"][0]["data"]) == 61 > first
        assert page.evaluate("window.kept")
        assert page.input_value("#shown") == "loss"
        expect(page.locator("#round-text")).to_have_text("after round 60 of 60")
        assert complaints == []
    finally:
        context.close()
        for process in filter(None, (watch, run)):
            process.terminate()
            process.communicate(timeout=60)
