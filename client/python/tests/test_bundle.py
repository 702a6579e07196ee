"""Bundles are written whole or not at all: no daemon, no kernels."""

import tarfile
import threading

import pytest

from qgemm import bundle
from qgemm.bundle import Bundle
from qgemm.errors import DataLoss, NotFound


def write(path, byte=1):
    bundle.write(path, [], {}, {"w": ("U8", (4,), bytes([byte]) * 4)})


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["b", "b.tar"])
def test_a_bundle_takes_the_place_of_the_one_before(tmp_path, name):
    path = tmp_path / "new" / name
    for byte in (1, 2):
        write(path, byte)
        Bundle.open(path).verify()
    assert entries(path.parent) == [name]
    if name == "b":
        (path / "kernels").mkdir()
        (path / "kernels" / "old.cubin").write_bytes(b"of the bundle before")
        write(path)
        assert entries(path) == ["manifest.json", "weights.safetensors"]


def test_a_folder_that_is_no_bundle_is_left_alone(tmp_path):
    path = tmp_path / "mine"
    path.mkdir()
    write(path)  # an empty one may be taken
    for manifest in ('{"name": "My App", "start_url": "."}', "[1]", "no JSON"):
        (path / "manifest.json").write_text(manifest)
        (path / "precious").write_text("mine")
        with pytest.raises(FileExistsError, match="is no bundle"):
            write(path)
        assert (path / "precious").read_text() == "mine"
    assert entries(tmp_path) == ["mine"]


@pytest.mark.parametrize("name", ["b", "b.tar"])
def test_what_fails_leaves_the_one_before(tmp_path, name, monkeypatch):
    path = tmp_path / name
    write(path)

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.write_bytes", fail)
        patched.setattr("tarfile.TarFile.addfile", fail)
        with pytest.raises(OSError, match="No space"):
            write(path, 2)
    assert entries(tmp_path) == [name]
    Bundle.open(path).verify()
    assert bytes(Bundle.open(path).weights()["w"]) == bytes([1]) * 4


def test_of_writers_of_one_bundle_the_last_one_wins(tmp_path):
    path, failures = tmp_path / "b", []

    def write_often(byte):
        try:
            for _ in range(20):
                write(path, byte)
        except Exception as error:  # is what the test is about
            failures.append(error)

    threads = [threading.Thread(target=write_often, args=(byte,)) for byte in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert failures == []
    Bundle.open(path).verify()
    assert entries(tmp_path) == ["b"]


def test_a_cut_archive_is_damaged(tmp_path):
    path = tmp_path / "b.tar"
    write(path)
    whole = path.read_bytes()
    with tarfile.open(path) as archive:
        end = max(member.offset_data + member.size for member in archive.getmembers())
    for size in range(0, end, 97):
        path.write_bytes(whole[:size])
        with pytest.raises((DataLoss, NotFound)):
            Bundle.open(path).verify()


def test_an_archive_of_links_is_damaged(tmp_path):
    path = tmp_path / "b.tar"
    write(path)
    with tarfile.open(path, "a") as archive:
        member = tarfile.TarInfo("kernels/link.cubin")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(DataLoss, match="no file"):
        Bundle.open(path)
