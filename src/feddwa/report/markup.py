"""Pieces of HTML that pages are made of."""

import lzma
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources


def template(name: str) -> str:
    """The text of a file of the template."""
    return _file(name).decode()


def library() -> str:
    """Apache ECharts, which is kept compressed."""
    return lzma.decompress(_file("echarts/echarts.min.js.xz")).decode()


def _file(name: str) -> bytes:
    return resources.files("feddwa.report").joinpath("template", *name.split("/")).read_bytes()


def sentence(words: str) -> str:
    """A sentence with non-breaking spaces between numbers and percent signs."""
    return escape(words).replace(" %", "&nbsp;%")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls sideways where it is wider than the page; heads and cells are HTML."""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
