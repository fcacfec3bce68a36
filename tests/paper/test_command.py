"""`feddwa reproduce` as people type it."""

import pytest

from feddwa import cli


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        status = cli.main(["reproduce", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_it_lists_what_there_is(call):
    status, out, _ = call("--list")
    assert status == 0
    assert out == call()[1]
    names = [line.split()[0] for line in out.splitlines()]
    assert names[:2] == ["table1", "table2"]
    assert names[-2:] == ["clusterfl-norms", "docs"]


def test_a_smoke_run_says_what_it_is_and_is_not_run_again(call, tmp_path):
    options = ("figure-similarity", "--scale", "smoke")
    status, out, _ = call(*options, "--dry-run")
    assert (status, "4 of 4 runs missing" in out) == (0, True)
    status, out, err = call(*options)
    assert (status, err) == (0, "")
    assert "Smoke scale" in out
    assert "wrote runs/figures/figure-similarity.svg" in out
    assert (tmp_path / "runs" / "figures" / "figure-similarity-maps.svg").exists()
    assert len(list((tmp_path / "runs" / "smoke" / "digits").iterdir())) == 4
    assert not (tmp_path / "results").exists()
    assert "seed 0" not in call(*options)[1]
    assert "0 of 4 runs missing" in call(*options, "--dry-run")[1]


def test_the_toy_needs_nothing(call):
    status, out, _ = call("toy")
    assert status == 0
    assert "FedDWA's rule: (0.5, 0.5, 0)" in out


def test_norms_of_updates(call):
    status, out, _ = call("clusterfl-norms", "--scale", "smoke", "--columns", "cifar10/pathological")
    assert status == 0
    assert out.startswith("cifar10/pathological: mean and largest ")
    assert "eps2=" in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("tabel1",), "reproduce: unknown name 'tabel1'; valid: table1, "),
        (("table1", "--columns", "mnist/iid"), "--columns: unknown name 'mnist/iid'; valid: emnist/pathological, "),
        (("table1", "--methods", "sgd"), "--methods: unknown name 'sgd'; valid: local, "),
        (("table1", "--seeds", "0"), "--seeds: got 0, must be at least 1"),
        (("table1", "--scale", "huge"), "--scale: got 'huge', must be one of paper, smoke"),
        (("clusterfl-norms", "--columns", "x"), "--columns: unknown name 'x'"),
    ],
)
def test_bad_requests_are_one_line(call, arguments, complaint):
    status, out, err = call(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"feddwa: {complaint}")
    assert err.count("\n") == 1


def test_without_any_data_it_says_where_to_get_them(call, tmp_path, monkeypatch):
    monkeypatch.delenv("FEDDWA_DATA", raising=False)
    monkeypatch.setenv("FEDDWA_CACHE", str(tmp_path / "cache"))
    status, out, err = call("figure-k")
    assert status == 2
    assert "cifar10: not at hand" in out
    assert "feddwa[hub]" in out
    assert "none of its data are at hand" in err
