"""The MNIST sample that the course ships, and the whole of MNIST for those who have a network.

Page `train_mnist`. Source: torchvision.datasets.MNIST; data/README.md tells where the data is from.
"""

import functools
import hashlib
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torchvision takes seconds to import: only who reads images pays
    from torchvision.datasets import MNIST

DATA_FOLDER = Path(__file__).resolve().parents[2] / "data"
MEAN, DEVIATION = 0.1307, 0.3081  # of all pixels of the full training set; 0 is paper, 1 is ink
# An IDX file is a header of 4 bytes and 4 more per dimension, then one byte per value.
FULL_BYTES = {
    "train-images-idx3-ubyte": 16 + 60_000 * 28 * 28,
    "train-labels-idx1-ubyte": 8 + 60_000,
    "t10k-images-idx3-ubyte": 16 + 10_000 * 28 * 28,  # t10k is the test set
    "t10k-labels-idx1-ubyte": 8 + 10_000,
}
RESTORE = (
    "Restore it in your clone with `git checkout -- data/MNIST data/checksums`, "
    "or make it again with `python data/make_mnist_sample.py` (needs the network)."
)


def load_mnist(full: bool = False, transform: Callable | None = None) -> "tuple[MNIST, MNIST]":
    """Return MNIST's training set and test set as torchvision datasets.

    The default is the sample in the course's `data` folder: 4,000 and 1,000 real images, as many of
    each digit. It needs no network and its checksums are verified. With `full=True` torchvision
    downloads the 60,000 and 10,000 images (about 12 MB) into `data/full`, once. The sample is a
    part of MNIST: test a model trained on the full set with the full test set, not with the sample.

    Args:
        full: Whether to load all of MNIST.
        transform: Applied to each PIL image. By default an image becomes a float32 tensor of shape
            (1, 28, 28), scaled so that the full training set has mean 0 and standard deviation 1.
            The sample takes the same constants (its own differ by less than 0.001), so that a
            model can move between the two.

    Returns:
        The training set and the test set; `dataset[i]` is an image and its digit, an int.

    Raises:
        FileNotFoundError: A file of the sample is missing.
        RuntimeError: A file is damaged, or the download failed.
    """
    if not isinstance(full, bool):
        raise TypeError(f"full must be True or False, got {full!r}")
    if transform is not None and not callable(transform):
        raise TypeError(f"transform must be callable or None, got {transform!r}")
    if full:
        return _load_full(DATA_FOLDER / "full", transform)
    _verify_sample(DATA_FOLDER)
    return _read(DATA_FOLDER, transform)


def _read(
    folder: Path, transform: Callable | None, *, download: bool = False
) -> "tuple[MNIST, MNIST]":
    from torchvision import transforms
    from torchvision.datasets import MNIST

    scale = transforms.Normalize((MEAN,), (DEVIATION,))
    transform = transform or transforms.Compose([transforms.ToTensor(), scale])
    train = MNIST(folder, train=True, transform=transform, download=download)
    return train, MNIST(folder, train=False, transform=transform, download=download)


def _verify_sample(folder: Path) -> None:
    checksums = _read_checksums(folder / "checksums")
    for path in (folder / "MNIST" / "raw" / name for name in FULL_BYTES):
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing. {RESTORE}")
        size, mtime_ns = path.stat().st_size, path.stat().st_mtime_ns
        expected = checksums.get(f"MNIST/raw/{path.name}", "(none in data/checksums)")
        found = _sha256(path, size, mtime_ns)
        if found != expected:
            difference = f"expected SHA-256 {expected}, found {found} ({size:,} bytes)"
            raise RuntimeError(f"{path} is damaged: {difference}. {RESTORE}")


def _read_checksums(path: Path) -> dict[str, str]:
    """Return file name -> digest; the file has the format of sha256sum."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing. The data comes with a clone of the course, not with the package: "
            f"run `pip install -e .` in a clone. Is a file of your clone gone? {RESTORE}"
        )
    lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


@functools.cache
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    """Hash a file: once per process, and again when its size or time of change is another."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _load_full(folder: Path, transform: Callable | None) -> "tuple[MNIST, MNIST]":
    raw = folder / "MNIST" / "raw"
    # torchvision checks what it downloads, but takes any unpacked file that has the right name.
    for path in (raw / name for name in FULL_BYTES):
        expected = FULL_BYTES[path.name]
        if path.exists() and path.stat().st_size != expected:
            difference = f"expected {expected:,} bytes, found {path.stat().st_size:,}"
            raise RuntimeError(f"{path}: {difference}. Delete it and call load_mnist(True) again.")
    try:
        return _read(folder, transform, download=True)
    except (RuntimeError, OSError, HTTPException) as error:
        raise RuntimeError(
            f"MNIST could not be downloaded into {raw}: this needs the network. Without one, fill "
            f"the folder by hand with {', '.join(FULL_BYTES)} (unpacked, or as .gz), "
            f"or call load_mnist() for the sample. The cause: {error}"
        ) from error
