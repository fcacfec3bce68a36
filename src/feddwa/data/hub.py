"""Files from the Hugging Face hub, at pinned revisions; the package that fetches them comes with the extra `hub`."""

from importlib import import_module
from pathlib import Path

from feddwa.data.catalogue import Hub
from feddwa.data.files import first_line
from feddwa.errors import InputError


def download(hub: Hub) -> Path:
    """The folder with the repository's files, fetched once and kept by the hub's own cache."""
    try:
        fetch = import_module("huggingface_hub").snapshot_download
    except ImportError:
        raise InputError("package huggingface_hub is not installed: pip install 'feddwa[hub]'") from None
    try:
        return Path(fetch(hub.id, repo_type="dataset", revision=hub.revision, allow_patterns=hub.files))
    except Exception as error:  # no network, no such revision, no space: all of them mean "not from here"
        raise InputError(f"cannot be fetched ({type(error).__name__}: {first_line(error)[:200]})") from None
