"""The index of a report on several settings: every method of each, to be filtered and compared."""

from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import Any

from feddwa.report.collect import method_numbers, styles_of
from feddwa.report.markup import sentence, template
from feddwa.report.page import document
from feddwa.results.methods import Method
from feddwa.results.units import human_bytes, human_seconds

HEADS = ("dataset", "setting", "method", "seeds", "rounds", "result", "traffic", "time", "state")


def index(settings: Mapping[str, Sequence[Method]], links: Mapping[str, str], live: bool = False) -> str:
    """The page as text. settings: name -> methods; links: name -> the page of that setting."""
    entries = [(name, method) for name, methods in settings.items() for method in methods]
    looks = [style for methods in settings.values() for style in styles_of(methods)]
    numbers = {
        "methods": [
            {**method_numbers(method), **look._asdict(), "setting": name, "unit": method.measure.head}
            for (name, method), look in zip(entries, looks, strict=True)
        ]
    }
    rows = "".join(_row(place, name, method, links[name]) for place, (name, method) in enumerate(entries))
    head = "".join(f'<th scope="col">{each}</th>' for each in ("compare", *HEADS))
    body = Template(template("index.html")).substitute(
        headline=sentence(f"{len(settings)} settings, {len(entries)} methods"), head=head, rows=rows
    )
    return document("feddwa report", body, numbers, ("index",), live)


def _row(place: int, name: str, method: Method, link: str) -> str:
    """A table row for a method of a setting; its attributes hold the values to filter by."""
    config, runs = method.runs[0].config, method.runs
    dataset, setting = name.split(", ", 1)
    rounds = sorted({int(run.rounds[-1]) for run in runs})
    state = method.standing if method.sound else "went wrong"
    told: dict[str, Any] = {"dataset": dataset, "setting": setting, "method": method.name}
    cells = [
        escape(dataset),
        f'<a href="{escape(link)}">{escape(setting)}</a>',
        escape(method.name),
        ", ".join(str(run.seed) for run in runs),
        f"{' and '.join(map(str, rounds))} of {config.rounds}",
        sentence(method.measure.text(method.last)),
        human_bytes(round(method.total("bytes"))),
        human_seconds(method.total("seconds")),
        f'<span class="{"mark" if state else ""}">{escape(state or "finished")}</span>',
    ]
    attributes = " ".join(f'data-{key}="{escape(value)}"' for key, value in told.items())
    box = f'<input type="checkbox" value="{place}" aria-label="Compare {escape(f"{method.name}, {name}")}">'
    return f"<tr {attributes}>{''.join(f'<td>{cell}</td>' for cell in (box, *cells))}</tr>"
