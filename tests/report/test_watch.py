"""`feddwa watch`: what its server answers, over plain HTTP on this machine; test_browser.py looks at it."""

import shutil
import socket
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

import feddwa
from feddwa import cli

server = pytest.importorskip("feddwa.report.server", reason="the extra watch is not installed")


@contextmanager
def watching(*paths, token="t" * 32):
    """The address of a server like that of `feddwa watch`, in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = server.serving(paths, token)
        thread = threading.Thread(target=serving.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/{token}/"
        finally:
            serving.should_exit = True
            thread.join()


def ask(address, method="GET", **headers):
    """(status, headers, text)."""
    request = urllib.request.Request(address, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


@pytest.fixture(scope="module")
def folder(runs, tmp_path_factory):
    """Two runs, one of them cut off after three rounds."""
    folder = tmp_path_factory.mktemp("watched")
    for name in ("feddwa", "local"):
        shutil.copytree(runs / "0" / name, folder / name)
    cut(folder / "feddwa", 4)
    return folder


def cut(run, rounds):
    (run / "record.json").unlink()
    for name in ("metrics.jsonl", "clients.jsonl"):
        lines = (run / name).read_text().splitlines(keepends=True)
        (run / name).write_text("".join(lines[:rounds]))


@pytest.fixture(scope="module")
def address(folder):
    with watching(folder) as address:
        yield address


def test_the_report_is_served_to_whoever_has_the_token(address):
    status, headers, text = ask(address)
    assert status == 200
    assert "FedDWA (stopped after round 3 of 6)" in text
    assert "connect-src 'self'" in text  # and nothing else may be asked
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_without_the_token_nothing_is_told(address):
    root, token = address.rstrip("/").rsplit("/", 1)
    for wrong in (f"{root}/", f"{root}/{token[:-1]}/", f"{root}/{token}x/", f"{root}/{'a' * len(token)}/events", root):
        status, _, text = ask(wrong)
        assert status in (403, 404)
        assert token not in text
        assert "FedDWA" not in text


def test_a_page_of_another_site_cannot_ask_under_its_own_name(address):
    assert ask(address, Host="attacker.example")[0] == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(address, folder, method):
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    for place in ("", "events", "feddwa/config.toml", "x/"):
        assert ask(address + place, method)[0] in (404, 405)
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before


def test_no_file_is_served(address):
    for place in ("../config.toml", "%2e%2e/%2e%2e/etc/passwd", "..%2f..%2fetc%2fpasswd", "feddwa/config.toml", "%00/"):
        status, _, text = ask(address + place)
        assert status in (403, 404)
        assert "algorithm" not in text
        assert "root:" not in text


def test_what_is_new_is_told_and_served(runs, tmp_path):
    run = shutil.copytree(runs / "0" / "local", tmp_path / "local")
    whole = {name: (run / name).read_text().splitlines(keepends=True) for name in ("metrics.jsonl", "clients.jsonl")}
    cut(run, 2)
    board = server.Board([str(tmp_path)])
    assert "Local (stopped after round 1 of 6)" in board.page("")
    first = board.page("")
    assert board.page("") is first  # not made again where nothing has changed
    with watching(tmp_path) as address, urllib.request.urlopen(f"{address}events", timeout=60) as events:
        assert events.headers["Content-Type"].startswith("text/event-stream")
        assert events.readline() == b": watching\n"
        for name, lines in whole.items():
            (run / name).write_text("".join(lines[:4]))
        while (line := events.readline()).strip() == b"" or line.startswith(b":"):
            pass
        assert line == b"data: changed\n"
        assert "Local (stopped after round 3 of 6)" in ask(address)[2]


def test_several_settings_have_an_index(runs, absent, tmp_path):
    feddwa.run(clients=4, rounds=1, partition="iid", out=str(tmp_path / "iid"))
    shutil.copytree(runs / "0" / "local", tmp_path / "local")
    board = server.Board([str(tmp_path)])
    overview = board.page("")
    assert "2 settings, 2 methods" in overview
    assert 'href="digits-iid-4-clients/"' in overview
    assert "FedDWA: " in board.page("digits-iid-4-clients")
    assert board.page("../iid") is None


def test_before_the_first_round_it_waits(tmp_path):
    board = server.Board([str(tmp_path)])
    assert "Waiting for a run" in board.page("")


BAD = {
    (): "RUN: got 'none', must be one directory or more",
    ("nowhere",): "RUN: got 'nowhere', must be a directory that is there",
    (".", "--port", "70000"): "--port",
    (".", "--port", "-1"): "--port",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_options_end_in_one_line(arguments, capsys):
    assert cli.main(["watch", *arguments]) == 2
    error = capsys.readouterr().err
    assert BAD[arguments] in error
    assert error.count("\n") == 1


def test_without_the_extra_it_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "feddwa.report.server")
    assert cli.main(["watch", str(tmp_path)]) == 2
    assert "watch needs uvicorn: pip install 'feddwa[watch]'" in capsys.readouterr().err
