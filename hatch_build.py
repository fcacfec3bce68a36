"""The package's description and addresses, for an index: README.md without what only a clone has.

FEDDWA_REPOSITORY is the address of the repository. With it, pictures and links of the README lead there, to the files
of this version; without it, the description has neither, only their words.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)]+)\)")


class Release(MetadataHookInterface):
    """Fills in what pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add `readme` and `urls`."""
        root, home = Path(self.root), os.environ.get("FEDDWA_REPOSITORY", "").rstrip("/")
        version = re.search(r'__version__ = "(.+)"', (root / "src/feddwa/__init__.py").read_text(encoding="utf-8"))
        text = description((root / "README.md").read_text(encoding="utf-8"), home, f"v{version[1]}" if version else "")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = addresses(home)


def description(readme: str, home: str, tag: str) -> str:
    """The README with addresses that work everywhere; home "": without pictures and links."""
    picture, link = ("", r"\1")
    if home:
        picture, link = rf"![\1]({home}/raw/{tag}/\2)", rf"[\1]({home}/blob/{tag}/\2)"
    return LINK.sub(link, PICTURE.sub(picture, readme))


def addresses(home: str) -> dict[str, str]:
    """The project's addresses, all of the repository; none where it is unknown."""
    if not home:
        return {}
    places = {"Documentation": "docs", "Changelog": "CHANGELOG.md"}
    files = {name: f"{home}/blob/HEAD/{path}" for name, path in places.items()}
    return {"Repository": home, "Issues": f"{home}/issues", **files}
