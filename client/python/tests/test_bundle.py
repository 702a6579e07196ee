"""Bundles are written whole or not at all: no daemon, no kernels."""

import dataclasses
import hashlib
import json
import random
import tarfile
import threading

import pytest

import qgemm
from conftest import pick_message
from qgemm import bundle
from qgemm.bundle import Bundle, Layer, Method
from qgemm.errors import DataLoss, NotFound, QgemmError


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


@pytest.mark.parametrize("name", ["../d", "a/b", "", ".", ".hidden", "x" * 65, "a\n"])
def test_a_method_name_that_is_no_files_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="is not allowed"):
        bundle.write(tmp_path / "in" / "b", [Method(name, 1, ())], {})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="method a is there twice"):
        bundle.write(tmp_path / "in" / "b", [Method("a", 1, ()), Method("a", None, ())], {})


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


# ---- malformed manifests --------------------------------------------------------------------------------------------


def layered(path):
    """A bundle of one method with one layer, its kernel and its weights; the method's manifest."""
    problem = qgemm.Problem.parse("64x64", "int4-g32")
    pick = qgemm.Pick.from_proto(pick_message(problem, 16))
    launch = dataclasses.replace(pick.launch, layout_id=qgemm.packing.LAYOUT_ID, tile_n=8, block_threads=32)
    access = {"failure": None, "parameters": [{"index": 0, "read": True, "written": False, "alignment": 16}]}
    cubin = b"kernel"
    kernel = dataclasses.replace(pick.kernel, sha256=hashlib.sha256(cubin).hexdigest(), access=access)
    pick = dataclasses.replace(pick, launch=launch, kernel=kernel)
    sizes = qgemm.packing.packed_sizes(64, 64, problem.canonical().format)
    tensors = {
        f"q.{plane}": ("U8", (size,), bytes(size))
        for plane, size in (("weights", sizes.weight_bytes), ("scales", sizes.scale_bytes))
    }
    bundle.write(path, [Method("decode", 16, (Layer("q", problem, "q", (pick,)),))], {kernel.sha256: cubin}, tensors)
    return json.loads((path / "methods" / "decode.json").read_text())


def write_method(path, document):
    """With its digest in the manifest."""
    text = json.dumps(document).encode()
    (path / "methods" / "decode.json").write_bytes(text)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["methods"][0].update(bytes=len(text), sha256=hashlib.sha256(text).hexdigest())
    (path / "manifest.json").write_text(json.dumps(manifest))


def read_all(path):
    opened = Bundle.open(path).verify()
    return [(layer.pick(3), opened.planes(layer)) for name in opened.methods for layer in opened.method(name).layers]


def test_what_is_written_is_what_is_read(tmp_path):
    layered(tmp_path / "b")
    ((pick, planes),) = read_all(tmp_path / "b")
    assert pick.m_bucket == 16 and set(planes) == {"weights", "scales"}


def _set(document, keys, value):
    for key in keys[:-1]:
        document = document[key]
    document[keys[-1]] = value


PICK = ("layers", 0, "picks", 0)


@pytest.mark.parametrize(
    "keys, value, says",
    [
        ((*PICK, "launch", "tile_m"), 0, "layers[0].picks[0].launch.tile_m must be a whole number from 1 to"),
        ((*PICK, "launch", "grid_n"), "10", "grid_n must be a whole number"),
        ((*PICK, "launch", "dynamic_smem_bytes"), True, "dynamic_smem_bytes must be a whole number"),
        ((*PICK, "launch", "arguments", 0, "role"), "z", "arguments[0].role must be one of x weights"),
        ((*PICK, "launch", "arguments", 0, "kind"), "texture", "arguments[0].kind must be one of pointer"),
        ((*PICK, "launch", "workspace"), [], "launch.workspace must be an object"),
        ((*PICK, "kernel"), "cd" * 32, "is not listed in manifest.json"),
        ((*PICK, "m_bucket"), 32, "M = 16 needs one pick, for bucket 16"),
        (("layers", 0, "picks"), [], "buckets [] do not ascend"),
        (("layers", 0, "problem", "n"), 0, "problem.n must be a whole number from 1 to"),
        (("layers", 0, "problem", "n"), 128, "layer q needs 4096 bytes of q.weights: the file has 2048 bytes"),
        (("layers", 0, "problem", "format", "bits"), 7, "bits 7 is not allowed"),
        (("layers", 0, "problem", "epilogue", "activation"), "tanh", 'activation "tanh" is not allowed'),
        (("layers", 0, "weights"), "k", "k.weights: the file has no such plane"),
        (("layers", 0, "name"), None, "layers[0].name is missing"),
    ],
)
def test_a_manifest_names_the_field_that_is_wrong(tmp_path, keys, value, says):
    document = layered(tmp_path / "b")
    _set(document, keys, value)
    write_method(tmp_path / "b", document)
    with pytest.raises(DataLoss) as error:
        read_all(tmp_path / "b")
    assert says in str(error.value)


def test_a_name_twice_or_a_file_too_many_is_damage(tmp_path):
    layered(tmp_path / "b")
    (tmp_path / "b" / "more").write_text("")
    with pytest.raises(DataLoss, match="more is not listed"):
        Bundle.open(tmp_path / "b").verify()
    manifest = tmp_path / "b" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"weights":', '"weights": null, "weights":'))
    with pytest.raises(DataLoss, match='has "weights" twice'):
        Bundle.open(tmp_path / "b")
    manifest.write_text('{"a":' * 100000)
    with pytest.raises(DataLoss, match="not JSON"):
        Bundle.open(tmp_path / "b")


def _places(value, keys=()):
    if keys:
        yield keys
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _places(value[key], (*keys, key))


def test_no_manifest_ends_in_another_error(tmp_path):
    """Every field of both manifests deleted, and set to what it is not."""
    path, original = tmp_path / "b", layered(tmp_path / "b")
    manifest = json.loads((path / "manifest.json").read_text())
    pick = random.Random(1).choice
    for keys in [*_places(original), *(("manifest", *keys) for keys in _places(manifest))]:
        for value in ("deleted", None, pick([-1, 1 << 70, 1.5, True]), pick(["", "../x", "\0"]), pick([[], {}, [1], {"a": 1}])):
            document, of_all = json.loads(json.dumps(original)), json.loads(json.dumps(manifest))
            place, rest = (of_all, keys[1:]) if keys[0] == "manifest" else (document, keys)
            for key in rest[:-1]:
                place = place[key]
            if value == "deleted":
                del place[rest[-1]]
            else:
                place[rest[-1]] = value
            (path / "manifest.json").write_text(json.dumps(manifest))
            write_method(path, document)
            if keys[0] == "manifest":
                (path / "manifest.json").write_text(json.dumps(of_all))
            try:
                read_all(path)
            except QgemmError:
                pass
