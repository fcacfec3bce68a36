"""A real browser opens a report of real runs and uses everything on it; pictures of it are kept in build/browser.

`make browser` installs what is needed and runs this. FEDDWA_BROWSER names a Chromium elsewhere.
"""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import feddwa
from feddwa.config import RunConfig
from feddwa.report.page import write_report
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
    assert page.locator(".chart").count() == page.locator(".chart:has(canvas)").count() == 11
    keep(page, "light", full_page=True)


def test_clients_are_called_by_their_names(open_page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["hospital-1", "hospital-3", "<b>hospital"]
    rows = "".join(f"{i % 7},{i % 2},{names[i % 3]}\n" for i in range(60))
    Path("own.csv").write_text("a,label,client\n" + rows)
    feddwa.run(dataset="own.csv", rounds=1, out="run")
    write_report(read(["run"]), "report.html")
    page = open_page(path=Path("report.html").absolute())
    assert page.locator("#client option").all_inner_texts() == sorted(names)
    page.select_option("#client", "1")
    assert page.inner_text("#client-facts").startswith("client hospital-1, 16 training and 4 test samples")
    assert "client hospital-3" in page.inner_text("#partners")


def test_methods_are_switched_on_and_off(open_page):
    page = open_page()
    assert set(lines(page)) == {"FedDWA", "Local", "FedAvg"}
    button = page.get_by_role("button", name="FedAvg")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert set(lines(page)) == {"FedDWA", "Local"}
    page.click("#all-methods")
    assert len(lines(page)) == 3
    page.click("#all-methods")
    assert lines(page) == []


def test_bands_over_seeds_and_clients(open_page):
    page = open_page()
    assert page.input_value("#band") == "seeds"
    count = len(option(page, "curves-chart")["series"])
    page.select_option("#band", "none")
    assert len(option(page, "curves-chart")["series"]) == count / 3
    page.select_option("#band", "spread")
    assert len(option(page, "curves-chart")["series"]) == count


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
    before = option(page, "map-chart")["series"][0]["data"]
    slider.focus()
    page.keyboard.press("Home")
    assert page.inner_text("#round-text") == "after round 1 of 6"
    assert slider.get_attribute("aria-valuetext") == "after round 1 of 6"
    assert option(page, "map-chart")["series"][0]["data"] != before
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#round-text") == "after round 2 of 6"
    assert option(page, "flow-chart")["series"][0]["markLine"]["data"][0]["xAxis"] == 2


def test_the_rounds_play_and_stop_at_the_end(open_page):
    page = open_page()
    page.click("#play")
    assert "Pause" in page.inner_text("#play")
    expect(page.locator("#round-text")).to_have_text("after round 3 of 6")
    page.click("#play")
    assert "Play" in page.inner_text("#play")
    page.click("#play")
    expect(page.locator("#play")).to_contain_text("Play", timeout=10_000)
    assert page.inner_text("#round-text") == "after round 6 of 6"


def test_the_map_shows_the_weights_that_were_stored(open_page, runs):
    page = open_page()
    weights = read([runs / "0" / "feddwa"])[0].weights[-1].matrix
    shown = {
        (cell["value"][1], cell["value"][0]): cell["value"][3]
        for cell in option(page, "map-chart")["series"][0]["data"]
    }
    for i in range(8):
        for j in range(8):  # rows count from the bottom of the picture
            assert abs(shown[7 - i, j] - weights[i, j]) < 0.005


def test_a_click_on_a_client_shows_its_partners_data_and_curve(open_page):
    page = open_page()
    page.mouse.click(*place(page, "map-chart", 2, 8 - 1 - 5))  # row of client 5
    assert page.input_value("#client") == "5"
    assert page.inner_text("#client-facts").startswith("client 5 (group 2, images turned by 90°), ")
    assert "itself" in page.inner_text("#partners")
    assert page.locator("#partners li").count() == 3  # top_k
    assert len(option(page, "client-curve")["series"]) == 2  # its own, and alone
    assert sum(option(page, "client-data")["series"][0]["data"]) > 100
    page.select_option("#client", "1")  # by keyboard, too
    assert page.inner_text("#client-facts").startswith("client 1 (group 1, ")
    page.locator("#explorer").scroll_into_view_if_needed()
    keep(page, "explorer")


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


def test_everything_is_reached_by_keyboard_and_has_a_name(open_page):
    page = open_page()
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert {"theme", "band", "run", "order", "play", "round", "client", "gain-run", "data-seed", "FedDWA"} <= reached
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
    page.select_option("#client", str(present))
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
    widths = {each["name"]: each["lineStyle"]["width"] for each in option(page, "curves-chart")["series"]}
    assert widths == {"FedAvg": 3, "FedDWA": 2, "Local": 2}


def test_a_comparison_in_which_nothing_trained(open_page, tmp_path):
    for name in ("feddwa", "local", "fedavg"):
        feddwa.run(algorithm=name, clients=8, rounds=5, lr=1e6, out=str(tmp_path / name))
    write_report(read([tmp_path]), tmp_path / "r.html")
    page = open_page(path=tmp_path / "r.html")
    assert page.inner_text("h1").startswith("FedAvg and FedDWA: nothing was trained")
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
