"""The Flower app as files: two modules that import this package, and a run config with every option."""

import json
import sys
from pathlib import Path

from feddwa import __version__
from feddwa.flower.settings import FlowerConfig, to_run_config

MODULE = "feddwa_app"
PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "feddwa"
version = "{version}"
description = "Personalised federated learning with FedDWA and the methods it is compared with"
license = "Apache-2.0"
dependencies = ["feddwa[flower]=={version}"]

[tool.hatch.build.targets.wheel]
packages = ["{module}"]

[tool.flwr.app]
publisher = "feddwa"

[tool.flwr.app.components]
serverapp = "{module}.server:app"
clientapp = "{module}.client:app"

# The options of `feddwa run`, and those of a federation; "" stands for the default, which may depend on the dataset.
[tool.flwr.app.config]
{config}"""


def files() -> dict[str, str]:
    """The files of the app: path relative to its folder -> content."""
    config = "".join(f"{name} = {json.dumps(value)}\n" for name, value in to_run_config(FlowerConfig()).items())
    modules = {
        f"{MODULE}/__init__.py": '"""The app: all of it is in the installed package feddwa."""\n',
        f"{MODULE}/server.py": '"""The ServerApp."""\n\nfrom feddwa.flower import server\n\napp = server.app\n',
        f"{MODULE}/client.py": '"""The ClientApp."""\n\nfrom feddwa.flower import client\n\napp = client.app\n',
    }
    return {"pyproject.toml": PROJECT.format(version=__version__, module=MODULE, config=config), **modules}


def write(folder: Path) -> None:
    """Write the app into a folder."""
    for name, content in files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":  # python -m feddwa.flower.app apps/feddwa
    write(Path(sys.argv[1]))
