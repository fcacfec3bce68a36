"""What mkdocs does on the way: the help of every command into commands.md, a menu of the pages that are there."""

import os
import re
from pathlib import Path
from typing import Any

from feddwa import __version__

OUTSIDE = r"\[([^\]]+)\]\((?:\.\./)+(?:README\.md|LICENSE|(?:src|tests|benchmarks|examples|results|apps)/?[^)]*)\)"


def on_config(config: Any) -> Any:
    """Leave pages out of the menu that are not there, and put those into it that it does not name."""
    config.copyright = f"feddwa {__version__}"  # which version the pages are of
    docs = Path(config.docs_dir)
    config.nav = [entry for entry in (_kept(entry, docs) for entry in config.nav) if entry]
    named = set(_targets(config.nav))
    others = [path.relative_to(docs).as_posix() for path in sorted(docs.rglob("*.md"))]
    more = [{_title(docs / page): page} for page in others if page not in named]
    config.nav += [{"More": more}] if more else []
    return config


def _targets(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inside = nav.values() if isinstance(nav, dict) else nav
    return [target for each in inside for target in _targets(each)]


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")


def _kept(entry: Any, docs: Path) -> Any:
    if isinstance(entry, str):
        return entry if (docs / entry).exists() else None
    ((title, target),) = entry.items()
    if isinstance(target, list):
        inside = [kept for kept in (_kept(each, docs) for each in target) if kept]
        return {title: inside} if inside else None
    return entry if (docs / target).exists() else None


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the commands; links to files of the repository, which the site does not have, become their names."""
    if page.file.src_uri == "commands.md":
        markdown = markdown.replace("<!-- commands -->", _commands())
    return re.sub(OUTSIDE, r"\1", markdown)


def _commands() -> str:
    from feddwa import cli
    from feddwa.cli.parser import make_parser

    os.environ["COLUMNS"] = "100"
    pages = []
    for name, command in cli.COMMANDS.items():
        text = make_parser(name, command.options, (command.example, *command.more)).format_help()
        pages.append(f"## {name}\n\n```text\n{text}```\n")
    return "\n".join(pages)
