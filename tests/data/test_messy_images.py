"""Folders of images as people have them: sizes, colours, turns, broken files; each case a real file."""

import io
import shutil

import numpy as np
import pytest
from PIL import Image

from feddwa.data.options import DataOptions
from feddwa.data.sources import load
from feddwa.errors import InputError
from tests.data.conftest import refuses

ORIENTATION = 0x0112


def read(path, **options):
    return load(str(path), None, DataOptions(**options))


def write(path, size=(8, 8), level=100, mode="L", turn=None, suffix=None):
    """Save a plain image; turn: its EXIF orientation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new(
        mode, size, level if mode in ("L", "I;16", "1") else (level,) * len(Image.new(mode, (1, 1)).getbands())
    )
    exif = Image.Exif()
    if turn is not None:
        exif[ORIENTATION] = turn
    image.save(path, exif=exif) if turn is not None else image.save(path)
    return path


@pytest.fixture
def pets(tmp_path):
    """Ten grey images of two classes."""
    for i in range(10):
        write(tmp_path / "pets" / "ab"[i % 2] / f"{i}.png", level=i)
    return tmp_path / "pets"


# Sizes.


def test_another_size_is_named_with_the_remedy(pets):
    write(pets / "a" / "wide.png", (12, 6))
    refuses(
        pets,
        "a/wide.png: image of 12x6 pixels, must be 8x8 as",
        "a/0.png is; --resize 8x8 scales all images to one size",
    )


@pytest.mark.parametrize(("resize", "shape"), [("6", (1, 6, 6)), ("12x5", (1, 5, 12)), ("8", (1, 8, 8))])
def test_images_are_scaled_to_one_size(pets, resize, shape):
    write(pets / "a" / "wide.png", (40, 6), level=77)
    data = read(pets, resize=resize)
    assert data.x.shape == (11, *shape)
    assert (data.x == 77).reshape(11, -1).all(axis=1).sum() == 1
    several = 1 if resize == "8" else 11
    images = "1 image" if several == 1 else f"{several} images"
    assert data.notes == (f"{images} of another size scaled to {shape[2]}x{shape[1]}",)
    assert data.form.resize


def test_a_large_photo_is_scaled_down(tmp_path, rng):
    """As wide as a phone's; a JPEG, of which a fraction is decoded."""
    half = np.repeat([[0] * 100 + [255] * 100], 150, axis=0).astype(np.uint8)
    for i in range(4):
        path = tmp_path / "photos" / "ab"[i % 2] / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(half).resize((1600, 1200)).save(path)
    data = read(tmp_path / "photos", resize="16")
    assert data.x[:, 0, :, :6].max() < 10
    assert data.x[:, 0, :, 10:].min() > 245


@pytest.mark.parametrize("resize", ["0", "-3", "64x", "x64", "9999", "64x48x3", "large", "4097x4"])
def test_a_size_that_is_none_is_refused(pets, resize):
    refuses(pets, f"--resize: got '{resize}', must be of the form 64 or 64x48, at most 4096", resize=resize)


# Colours.


@pytest.mark.parametrize("first", ["L", "RGB"])
def test_grey_and_colour_become_colour_whichever_comes_first(tmp_path, first):
    other = {"L": "RGB", "RGB": "L"}[first]
    for i in range(10):
        write(tmp_path / "mixed" / "ab"[i % 2] / f"{i}.png", mode=first if i < 5 else other, level=i)
    data = read(tmp_path / "mixed")
    assert data.x.shape == (10, 3, 8, 8)
    assert sorted(data.x[:, 0, 0, 0].tolist()) == list(range(10))
    assert (data.x[:, 0] == data.x[:, 2]).all()


@pytest.mark.parametrize(
    ("mode", "suffix", "channels"),
    [("1", "png", 1), ("L", "jpg", 1), ("LA", "png", 1), ("P", "png", 3), ("RGBA", "png", 3), ("CMYK", "jpg", 3),
     ("I;16", "png", 1), ("RGB", "bmp", 3), ("L", "gif", 3), ("RGB", "webp", 3), ("L", "tiff", 1), ("L", "pgm", 1)],
)  # fmt: skip
def test_every_kind_of_image(tmp_path, mode, suffix, channels):
    for i in range(4):
        path = tmp_path / "own" / "ab"[i % 2] / f"{i}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, (8, 6)).save(path)
    data = read(tmp_path / "own")
    assert (data.x.shape, data.x.dtype) == ((4, channels, 6, 8), np.uint8)


# Turns.


@pytest.mark.parametrize("suffix", ["jpg", "webp", "tiff", "png"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_images_are_turned_as_their_exif_data_say(tmp_path, turn, suffix):
    """A dark corner that is top left after the turn, in images that are stored in eight ways."""
    pixels = np.full((8, 16), 255, dtype=np.uint8)
    pixels[:4, :8] = 0
    back = {1: lambda a: a, 2: np.fliplr, 3: lambda a: np.rot90(a, 2), 4: np.flipud, 5: np.transpose,
            6: np.rot90, 7: lambda a: np.rot90(a, 2).T, 8: lambda a: np.rot90(a, -1)}  # fmt: skip
    exif = Image.Exif()
    exif[ORIENTATION] = turn
    for i in range(4):
        path = tmp_path / "own" / "ab"[i % 2] / f"{i}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.ascontiguousarray(back[turn](pixels))).save(path, exif=exif)
    data = read(tmp_path / "own")
    assert data.x.shape[2:] == (8, 16)
    assert data.x[:, :, :3, :6].max() < 30
    assert data.x[:, :, 5:].min() > 200


# Broken files.


def truncated(path):
    path.write_bytes(path.read_bytes()[:45])  # behind the header of 33 bytes, within the pixels


BROKEN = {
    "nothing in it": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("see the other folder"),
    "cut in the header": lambda path: path.write_bytes(path.read_bytes()[:10]),
    "cut in the pixels": truncated,
    "a page of HTML": lambda path: path.write_text("<html>404 not found</html>"),
    "pixels of 32 bits": lambda path: Image.new("F", (8, 8)).save(path, "TIFF"),
    "another format": lambda path: Image.new("L", (8, 8)).save(path, "ICO"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_images_are_named_and_counted_or_left_out(pets, case):
    for name in ("a/4.png", "b/7.png"):
        BROKEN[case](pets / name)
    refuses(pets, "a/4.png: ", "2 of 10 images cannot be read; --skip-broken leaves such images out")
    data = read(pets, skip_broken=True)
    assert sorted(data.x[:, 0, 0, 0].tolist()) == [0, 1, 2, 3, 5, 6, 8, 9]
    assert np.array_equal(data.x[:, 0, 0, 0] % 2, data.y)
    assert data.notes == ("2 of 10 images cannot be read, left out: pets/a/4.png, pets/b/7.png",)


def test_all_broken_images_are_counted_whatever_is_wrong_with_them(pets):
    BROKEN["text"](pets / "a" / "2.png")
    BROKEN["cut in the pixels"](pets / "a" / "4.png")
    refuses(pets, "a/2.png: not a readable image", "2 of 10 images cannot be read")
    assert len(read(pets, skip_broken=True).x) == 8


def test_a_folder_of_nothing_but_broken_images_is_refused(pets):
    for path in pets.rglob("*.png"):
        path.write_bytes(b"no image")
    refuses(pets, "10 of 10 images cannot be read", skip_broken=True)


def test_broken_images_that_leave_a_client_too_small(tmp_path):
    for client, count in (("anna", 6), ("bert", 2)):
        for i in range(count):
            write(tmp_path / "own" / client / "ab"[i % 2] / f"{i}.png")
    truncated(tmp_path / "own" / "bert" / "a" / "0.png")
    refuses(tmp_path / "own", "client bert has 1 sample", "--min-samples 2", skip_broken=True)
    data = read(tmp_path / "own", skip_broken=True, min_samples=2)
    assert data.client_names == ("anna",)
    assert len(data.notes) == 2


# Folders.


def test_train_and_validation_folders_of_clients(tmp_path):
    for part, count in (("train", 4), ("val", 2)):
        for client in ("anna", "bert"):
            for i in range(count):
                write(tmp_path / "own" / part / client / "ab"[i % 2] / f"{i}.png", level=7 if part == "val" else 3)
    data = read(tmp_path / "own")
    assert (data.client_names, data.train_count, len(data.x)) == (("anna", "bert"), 8, 12)
    assert (data.x[8:] == 7).all()


REFUSED = {
    "a label column": ({"label": "class"}, "--label: has no effect on"),
    "a client column": ({"client": "site"}, "--client: has no effect on"),
    "values to fill in": ({"impute": "mean"}, "--impute: has no effect on"),
    "an order in time": ({"split": "time"}, "--split time:"),
    "a least size without clients": ({"min_samples": 3}, "--min-samples:"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_a_folder_of_images_has_no_use_for(pets, case):
    options, words = REFUSED[case]
    refuses(pets, words, "pets", **options)


@pytest.mark.parametrize("names", [("train", "test"), ("Train", "Test"), ("training", "testing"), ("TRAIN", "valid")])
def test_names_of_the_training_and_the_test_folder(pets, names):
    for name in names:
        shutil.copytree(pets, pets.with_name("split") / name)
    data = read(pets.with_name("split"))
    assert (data.train_count, len(data.x), data.client) == (10, 20, None)


def test_a_training_folder_alone_gives_its_test_part(pets):
    shutil.copytree(pets, pets.with_name("split") / "train")
    data = read(pets.with_name("split"))
    assert (data.train_count, len(data.x), data.client) == (8, 10, None)


def test_of_a_validation_and_a_test_folder_one_is_used(pets):
    for name in ("train", "val", "test"):
        shutil.copytree(pets, pets.with_name("split") / name)
    data = read(pets.with_name("split"))
    assert (data.train_count, len(data.x)) == (10, 20)
    assert data.notes == ("val not used, as test is the test part",)


def test_a_folder_beside_train_and_test_is_refused(pets):
    for name in ("train", "test", "unlabelled"):
        shutil.copytree(pets, pets.with_name("split") / name)
    refuses(pets.with_name("split"), "has unlabelled beside train and test")


def test_a_folder_around_the_data_is_named(pets):
    for name in ("train", "test"):
        shutil.copytree(pets, pets.with_name("zip") / "photos" / name)
    refuses(pets.with_name("zip"), f"or give --dataset {pets.with_name('zip')}/photos")


def test_the_image_that_lies_deeper_than_the_others_is_named(pets):
    deep = pets / "cat" / "summer 2019" / "deep"
    deep.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(deep / "x.png")
    refuses(pets, f"{deep / 'x.png'}: images must all be in <class>/")


def test_files_of_other_kinds_among_images_are_passed_over(pets):
    (pets / "labels.csv").write_text("file,label\n0.png,a\n")
    (pets / "a" / "Thumbs.db").write_bytes(b"...")
    (pets / "a" / ".DS_Store").write_bytes(b"...")
    (pets / "a" / "IMG_1.HEIC").write_bytes(b"...")
    (pets / "b" / "IMG_2.HEIC").write_bytes(b"...")
    data = read(pets)
    assert len(data.x) == 10
    assert data.notes == ("3 files passed over: .HEIC (2), .csv (1)",)


def test_pixels_are_standardised_where_it_is_asked_for(pets):
    data = read(pets, standardise=True)
    pixels = data.x[: data.train_count] / 255
    assert data.mean == pytest.approx((pixels.mean(),))
    assert data.std == pytest.approx((pixels.std(),))
    assert read(pets).mean == ()


# The form, and the cache.


def test_new_images_are_read_in_the_same_form(pets, tmp_path):
    form = read(pets, resize="8").form
    write(tmp_path / "new" / "b" / "x.png", (20, 10), level=9)
    write(tmp_path / "new" / "a" / "y.jpg", (8, 8), level=9, mode="RGB")
    new = form.read(tmp_path / "new")
    assert (new.x.shape, new.y.tolist(), new.names) == ((2, 1, 8, 8), [0, 1], ("a/y.jpg", "b/x.png"))
    shutil.move(tmp_path / "new" / "b", tmp_path / "new" / "unknown")
    assert form.read(tmp_path / "new").y is None
    one = form.read(tmp_path / "new" / "a" / "y.jpg")
    assert (one.x.shape, one.names) == ((1, 1, 8, 8), ("y.jpg",))
    with pytest.raises(InputError, match=r"x\.png: image of 20x10 pixels, must be 8x8"):
        read(pets).form.read(tmp_path / "new")


def test_images_are_decoded_once_into_the_cache(pets, own_cache, monkeypatch):
    told = []
    first = load(str(pets), None, DataOptions(), lambda done, total: told.append((done, total)))
    assert told == [(i, 10) for i in range(1, 11)]
    assert isinstance(first.x, np.memmap)
    monkeypatch.setattr("feddwa.data.own.pictures.decode_into", lambda *_: pytest.fail("decoded again"))
    again = read(pets)
    assert np.array_equal(again.x, first.x)
    entries = [sorted(file.name for file in entry.iterdir()) for entry in own_cache.iterdir()]
    assert entries == [["manifest.json", "x.npy", "y.npy"]]


def test_nothing_is_left_of_a_folder_that_is_refused(pets, own_cache):
    truncated(pets / "a" / "4.png")
    refuses(pets, "a/4.png: not a readable image")
    assert list(own_cache.iterdir()) == []


def test_images_in_memory_and_on_disk_agree_after_skipping(pets):
    """A file whose header is sound is found broken when its place is reserved already: the others move up."""
    truncated(pets / "a" / "0.png")
    data = read(pets, skip_broken=True)
    buffer = io.BytesIO((pets / "b" / "1.png").read_bytes())
    assert (data.x[np.flatnonzero(data.x[:, 0, 0, 0] == 1)[0], 0] == np.asarray(Image.open(buffer))).all()
    assert data.train_count == 7
