"""The named datasets: their facts, where their files are looked for, and where the hub has them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from feddwa.data.files import Tree
from feddwa.data.originals import Raw, cifar_batches, class_folders, idx_files, tiny_imagenet


@dataclass(frozen=True)
class Hub:
    """A dataset repository of the Hugging Face hub."""

    id: str
    revision: str  # a commit, or "main" where only the row counts vouch for the content
    files: str  # pattern of the files that are needed
    transposed: bool = False  # images stored with rows and columns exchanged


@dataclass(frozen=True)
class Source:
    """A dataset by name."""

    name: str
    summary: str
    shape: tuple[int, int, int]  # (C, H, W)
    classes: int
    rows: tuple[int, int]  # training and test rows of the original; verified on what the hub gives
    original: Callable[[Tree, tuple[int, ...]], Raw | None]  # reader of the original distribution
    hub: Hub
    places: tuple[str, ...] = ()  # files and folders of the original distribution, beside those named after the dataset
    label: tuple[str, ...] = ("label",)  # label column in Parquet, first match
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_names: tuple[str, ...] = ()
    reduce: int = 1  # images this many times larger are averaged down


_CIFAR_MEAN = 0.4914, 0.4822, 0.4465
_CIFAR_STD = 0.2023, 0.1994, 0.2010  # the authors' constants; the spread over all pixels is 0.2470, 0.2435, 0.2616
_HALF = 0.5, 0.5, 0.5
_DIGITS = tuple("0123456789")
_UPPER = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_EMNIST_PLACES = ("emnist", "EMNIST", "gzip.zip", "emnist.zip")
_TINY_PLACES = ("tiny-imagenet-200", "tiny-imagenet-200.zip")
_TINY_HUB = Hub("zh-plus/tiny-imagenet", "5a77092c28e51558c5586e9c5eb71a7e17a5e43f", "data/*.parquet")


def _emnist(part: str, first_label: int = 0) -> Callable[[Tree, tuple[int, ...]], Raw | None]:
    return partial(
        idx_files, train=f"emnist-{part}-train", test=f"emnist-{part}-test", transposed=True, first_label=first_label
    )


_ALL = (
    Source(
        "emnist",
        "EMNIST byclass: 814,255 handwritten characters, 28x28 grey, 62 classes of very unequal size",
        (1, 28, 28),
        62,
        (697_932, 116_323),
        _emnist("byclass"),
        Hub("Royc30ne/emnist-byclass", "main", "*ubyte.gz"),
        places=("emnist_byclass", "emnist-byclass", *_EMNIST_PLACES),
        class_names=(*_DIGITS, *_UPPER, *(letter.lower() for letter in _UPPER)),
    ),
    Source(
        "emnist-letters",
        "EMNIST letters: 145,600 handwritten letters, 28x28 grey, 26 classes, upper and lower case merged",
        (1, 28, 28),
        26,
        (124_800, 20_800),
        _emnist("letters", first_label=1),
        Hub("tanganke/emnist_letters", "4236c26fe034bc5b23851adc00067fa87b8ac16b", "*/*.parquet", transposed=True),
        places=_EMNIST_PLACES,
        class_names=_UPPER,
    ),
    Source(
        "emnist-balanced",
        "EMNIST balanced: 131,600 handwritten characters, 28x28 grey, 47 classes of equal size",
        (1, 28, 28),
        47,
        (112_800, 18_800),
        _emnist("balanced"),
        Hub("Royc30ne/emnist-balanced", "main", "*ubyte.gz"),
        places=_EMNIST_PLACES,
        class_names=(*_DIGITS, *_UPPER, *"abdefghnqrt"),
    ),
    Source(
        "cifar10",
        "CIFAR-10: 60,000 photographs, 32x32 colour, 10 classes",
        (3, 32, 32),
        10,
        (50_000, 10_000),
        partial(
            cifar_batches,
            train=[f"data_batch_{i}" for i in range(1, 6)],
            test="test_batch",
            meta="batches.meta",
            label="labels",
        ),
        Hub("uoft-cs/cifar10", "0b2714987fa478483af9968de7c934580d0bb9a2", "plain_text/*.parquet"),
        places=("cifar-10", "cifar-10-batches-py", "cifar-10-python.tar.gz"),
        class_names=_OBJECTS,
        mean=_CIFAR_MEAN,
        std=_CIFAR_STD,
    ),
    Source(
        "cifar100",
        "CIFAR-100: 60,000 photographs, 32x32 colour, 100 classes",
        (3, 32, 32),
        100,
        (50_000, 10_000),
        partial(cifar_batches, train=["train"], test="test", meta="meta", label="fine_labels"),
        Hub("uoft-cs/cifar100", "aadb3af77e9048adbea6b47c21a81e47dd092ae5", "cifar100/*.parquet"),
        places=("cifar-100", "cifar-100-python", "cifar-100-python.tar.gz"),
        label=("fine_label", "label"),
        mean=_CIFAR_MEAN,
        std=_CIFAR_STD,
    ),
    Source(
        "cinic10",
        "CINIC-10: 90,000 training and 90,000 test images, 32x32 colour, 10 classes; its validation part is not used",
        (3, 32, 32),
        10,
        (90_000, 90_000),
        class_folders,
        Hub("flwrlabs/cinic10", "8e3c2c337e520de86f32a669bb7dcc9662930502", "data/t*.parquet"),
        places=("cinic-10", "CINIC-10", "CINIC-10.tar.gz"),
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
        class_names=_OBJECTS,
    ),
    Source(
        "tiny-imagenet",
        "Tiny-ImageNet: 100,000 training and 10,000 validation images, 64x64 colour, 200 classes",
        (3, 64, 64),
        200,
        (100_000, 10_000),
        tiny_imagenet,
        _TINY_HUB,
        places=_TINY_PLACES,
        mean=_HALF,
        std=_HALF,
    ),
    Source(
        "tiny-imagenet-32",
        "Tiny-ImageNet averaged down to 32x32: four times cheaper, and the size that the paper names",
        (3, 32, 32),
        200,
        (100_000, 10_000),
        partial(tiny_imagenet, reduce=2),
        _TINY_HUB,
        places=("tiny-imagenet", "tiny_imagenet", *_TINY_PLACES),
        reduce=2,
        mean=_HALF,
        std=_HALF,
    ),
    Source(
        "fashion-mnist",
        "Fashion-MNIST: 70,000 pictures of clothing, 28x28 grey, 10 classes",
        (1, 28, 28),
        10,
        (60_000, 10_000),
        partial(idx_files, train="train", test="t10k"),
        Hub("zalando-datasets/fashion_mnist", "531be5e2ccc9dba0c201ad3ae567a4f3d16ecdd2", "fashion_mnist/*.parquet"),
        places=("fashion", "FashionMNIST"),
    ),
    Source(
        "mnist",
        "MNIST: 70,000 handwritten digits, 28x28 grey, 10 classes",
        (1, 28, 28),
        10,
        (60_000, 10_000),
        partial(idx_files, train="train", test="t10k"),
        Hub("ylecun/mnist", "77f3279092a1c1579b2250db8eafed0ad422088c", "mnist/*.parquet"),
        places=("MNIST",),
        class_names=_DIGITS,
    ),
)

SOURCES: dict[str, Source] = {source.name: source for source in _ALL}
