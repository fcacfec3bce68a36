"""Writes the map of modules in docs/architecture.md from their docstrings: python docs/module_map.py"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parent / "architecture.md"
ROOT = PAGE.parent.parent
PACKAGES = ("src/feddwa", "apps/reproduction/feddwa_reproduction")
BLOCK = re.compile(r"(<!-- map -->\n).*?(<!-- end -->)", re.DOTALL)
COLUMN = 24  # at which sentences begin


def lines(folder: Path, depth: int = 1) -> Iterator[str]:
    """A line per module, its name and the first line of its docstring; then the folders. Methods have a page."""
    methods = folder.name == "algorithms"
    for path in sorted(folder.glob("*.py")):
        if not path.stem.startswith("__") and not (methods and _has_title(path)):
            yield _line(depth, path.name, path)
    for inner in sorted(path for path in folder.iterdir() if (path / "__init__.py").exists()):
        yield _line(depth, f"{inner.name}/", inner / "__init__.py")
        yield from lines(inner, depth + 1)


def _line(depth: int, name: str, path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence = doc.partition("\n")[0].removesuffix(".").replace("`", "")
    return f"{'  ' * depth + name:<{COLUMN}} {sentence}".rstrip()


def _has_title(path: Path) -> bool:
    return re.search(r"^    title = ", path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def page(text: str) -> str:
    """The page with the map as it is now."""
    found = [line for package in PACKAGES for line in (f"{package}/", *lines(ROOT / package))]
    block = "\n".join(["```text", *found, "```", ""])
    return BLOCK.sub(lambda marks: f"{marks[1]}{block}{marks[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
