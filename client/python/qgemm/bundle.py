"""Bundles: kernels, how to launch them and packed weights as a directory or one tar file; no daemon needed to run them.

    bundle = Bundle.open("model.bundle")
    for layer in bundle.method("decode").layers:
        pick, planes = layer.pick(13), bundle.planes(layer)

`client/bundle/manifest.schema.json` in the repository is the schema of the manifests; `qgemmctl bundle` makes, verifies and
compares bundles, too. What `write` makes here it reads there. The same contents give the same bytes.
"""

import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import os
import pathlib
import re
import tarfile
import tempfile
from typing import Dict, Optional, Tuple

import numpy as np

from qgemm.buckets import bucket_for
from qgemm.bundle_json import pick_from_json, pick_to_json, problem_from_json, problem_to_json
from qgemm.errors import DataLoss, FailedPrecondition, NotFound
from qgemm.json_fields import Fields, parse_object
from qgemm.packing import LAYOUT_ID, packed_sizes
from qgemm.safetensors_header import Header
from qgemm.types import Pick, PointerArgument, Problem

VERSION = 1
ABI_VERSION = 2


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer of a method."""

    name: str
    problem: Problem
    weight_key: str  # "": whoever launches brings the weights
    picks: Tuple[Pick, ...]  # by bucket, ascending

    def pick(self, m):
        """The pick that serves m rows: its bucket's, else the next larger one's; None where there is none."""
        return next((pick for pick in self.picks if pick.m_bucket >= bucket_for(m)), None)


@dataclasses.dataclass(frozen=True)
class Method:
    name: str
    static_m: Optional[int]  # rows of every launch; None: chosen at run time
    layers: Tuple[Layer, ...]


def check_access(pick):
    """DataLoss: by its access report the pick's kernel writes an argument that the launch does not declare as written. A
    kernel of which nobody said what it writes, or could not, is let through."""
    access = pick.kernel.access
    if not access or access["failure"]:
        return
    for row in access["parameters"]:
        if not row["written"] or row["index"] >= len(pick.launch.arguments):
            continue
        argument = pick.launch.arguments[row["index"]]
        if not (isinstance(argument, PointerArgument) and argument.written):
            raise DataLoss(f"kernel {pick.kernel_sha256} writes argument '{argument.name}', which its launch does not say")


# ---- reading --------------------------------------------------------------------------------------------------------


class Bundle:
    """A bundle on disk, read-only. DataLoss: a file is damaged; FailedPrecondition: of a version not known here."""

    def __init__(self, path, files):
        self.path, self._files = path, files
        self.manifest = parse_object(self._read("manifest.json"), f"{path}: manifest.json")
        wanted = {"bundle_version": VERSION, "abi_version": ABI_VERSION, "layout_id": LAYOUT_ID}
        for field, value in wanted.items():
            if self.manifest.get(field) != value:
                raise FailedPrecondition(f"{path}: {field} is {self.manifest.get(field)}: this client knows {value}")
        fields = Fields(self.manifest, f"{path}: manifest")
        self._kernels = {kernel.sha256("sha256"): kernel for kernel in fields.objects("kernels")}
        self._methods = {method.text("name"): method for method in fields.objects("methods")}
        self._weights = fields.object("weights") if "weights" in fields else None

    @classmethod
    def open(cls, path):
        path = pathlib.Path(path)
        if path.is_dir():
            files = {p.relative_to(path).as_posix(): p.read_bytes for p in path.rglob("*") if p.is_file()}
        elif path.exists():
            try:
                with tarfile.open(path, "r:") as archive:
                    members = archive.getmembers()
            except tarfile.TarError as error:
                raise DataLoss(f"{path}: no bundle's archive: {error}") from None
            files = {m.name: _slice_reader(path, m.offset_data, m.size) for m in members if m.isfile()}
            if len(files) != len(members):
                raise DataLoss(f"{path}: it holds a file twice, or what is no file")
        else:
            raise NotFound(f"there is no bundle {path}")
        if "manifest.json" not in files:
            raise NotFound(f"{path} is no bundle: it has no manifest.json")
        return cls(path, files)

    def _read(self, name):
        if name not in self._files:
            raise DataLoss(f"{self.path}: file {name} is missing")
        return self._files[name]()

    def _checked(self, entry, name=None):
        """The bytes of the file that the Fields `entry` describe."""
        name = name or entry.text("file")
        data = self._read(name)
        if len(data) != entry.long("bytes") or hashlib.sha256(data).hexdigest() != entry.sha256("sha256"):
            raise DataLoss(f"{self.path}: file {name} has other bytes than the manifest says")
        return data

    @property
    def methods(self):
        """The names of the exported methods."""
        return list(self._methods)

    def method(self, name):
        entry = self._methods.get(name)
        if entry is None:
            raise NotFound(f"{self.path} has no method {name}: there are {', '.join(self.methods)}")
        file = entry.text("file")
        f = Fields(parse_object(self._checked(entry), f"{self.path}: {file}"), f"{self.path}: {file}")
        static_m = f.long("static_m", 1) if "static_m" in f else None
        return Method(name, static_m, tuple(self._layer(layer, static_m) for layer in f.objects("layers")))

    def _layer(self, f, static_m):
        problem = problem_from_json(f.object("problem"))
        picks = tuple(pick_from_json(pick, problem, self._kernels) for pick in f.objects("picks"))
        buckets = [pick.m_bucket for pick in picks]
        if not buckets or buckets != sorted(set(buckets)):
            raise DataLoss(f"{f.where}: its picks' buckets {buckets} do not ascend")
        if static_m is not None and buckets != [bucket_for(static_m)]:
            raise DataLoss(f"{f.where}: M = {static_m} needs one pick, for bucket {bucket_for(static_m)}")
        return Layer(f.text("name"), problem, f.text("weights") if "weights" in f else "", picks)

    def cubin(self, sha256):
        """A kernel's bytes, with their digest checked."""
        if sha256 not in self._kernels:
            raise NotFound(f"{self.path} has no kernel {sha256}")
        return self._checked(self._kernels[sha256], f"kernels/{sha256}.cubin")

    def weights(self):
        """{name: uint8 array} of all tensors of the weights file, as bytes; {} without one."""
        if self._weights is None:
            return {}
        data, where = self._checked(self._weights), f"{self.path}: {self._weights.text('file')}"
        return _read_safetensors(data, where)

    def planes(self, layer, weights=None):
        """{"weights", "scales", ...: uint8 array} of a layer; `weights`: what weights() gave, to read it once."""
        tensors = self.weights() if weights is None else weights
        prefix = f"{layer.weight_key}."
        return {name[len(prefix) :]: data for name, data in tensors.items() if name.startswith(prefix)}

    def verify(self):
        """Raises DataLoss for the first file that is missing, damaged or not listed, plane of a layer's weights that is missing
        or has another size, or kernel that writes what its launch does not say; else returns self."""
        listed = {"manifest.json", *(f"kernels/{sha256}.cubin" for sha256 in self._kernels)}
        for sha256 in self._kernels:
            self.cubin(sha256)
        weights = self.weights()
        if self._weights is not None:
            listed.add(self._weights.text("file"))
        for name, entry in self._methods.items():
            listed.add(entry.text("file"))
            for layer in self.method(name).layers:
                self._check_planes(layer, weights)
                for pick in layer.picks:
                    check_access(pick)
        unknown = sorted(set(self._files) - listed)
        if unknown:
            raise DataLoss(f"{self.path}: file {unknown[0]} is not listed in manifest.json")
        return self

    def _check_planes(self, layer, weights):
        if not layer.weight_key:
            return
        p = layer.problem
        sizes = packed_sizes(p.n, p.k, p.format)
        wanted = {"weights": sizes.weight_bytes, "scales": sizes.scale_bytes, "zeros": sizes.zero_bytes, "steps": sizes.step_bytes,
                  "bias": p.n * (4 if p.out == "fp32" else 2) if p.bias else 0}  # fmt: skip
        for plane, size in wanted.items():
            found = weights.get(f"{layer.weight_key}.{plane}")
            if size and (found is None or found.nbytes != size):
                has = "no such plane" if found is None else f"{found.nbytes} bytes"
                raise DataLoss(f"{self.path}: layer {layer.name} needs {size} bytes of {layer.weight_key}.{plane}: the file has {has}")


def _slice_reader(path, offset, size):
    def read():
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(size)

    return read


def _read_safetensors(data, where):
    begin = 8 + int.from_bytes(data[:8], "little")
    header = parse_object(data[8:begin], f"{where}: its header")
    body, found = np.frombuffer(data, np.uint8)[begin:], {}
    for name in header.keys() - {"__metadata__"}:
        offsets = Fields(header[name], f"{where}: {name}").row.get("data_offsets")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(offset) is int for offset in offsets):
            raise DataLoss(f"{where}: {name}.data_offsets must be two whole numbers")
        if not 0 <= offsets[0] <= offsets[1] <= len(body):
            raise DataLoss(f"{where}: {name} lies at byte offsets {offsets[0]} to {offsets[1]}: there are {len(body)} bytes")
        found[name] = body[slice(*offsets)]
    return found


# ---- writing --------------------------------------------------------------------------------------------------------


def _safetensors(tensors):
    """{name: (dtype, shape, bytes)} -> a file's bytes."""
    header, in_order = Header(), sorted(tensors.items())
    for name, (dtype, shape, data) in in_order:
        header.add(name, dtype, shape, len(data))
    return header.to_bytes() + b"".join(data for _, (_, _, data) in in_order)


def _text(document):
    return (json.dumps(document, indent=1) + "\n").encode()


def write(path, methods, cubins, tensors=None, weights_file=None):
    """Writes a bundle to a directory, or to one file where `path` ends with .tar. `methods`: of Method; `cubins`: {sha256:
    bytes} of all their picks; `tensors`: {name: (dtype, shape, bytes)} of the weights file, or `weights_file`: the path of
    a finished one, which is moved; neither: without one."""
    _check_names([method.name for method in methods])
    files: Dict[str, object] = {}  # bytes, or the path of a file to move

    def add(name, data):
        files[name] = data
        digest, size = _digest(data)
        return {"file": name, "bytes": size, "sha256": digest}

    infos, entries = {}, []
    for method in sorted(methods, key=lambda m: m.name):
        layers = [
            {"name": layer.name, "weights": layer.weight_key or None, "problem": problem_to_json(layer.problem),
             "picks": [pick_to_json(pick) for pick in layer.picks]}
            for layer in method.layers
        ]  # fmt: skip
        document = {"bundle_version": VERSION, "name": method.name, "static_m": method.static_m, "layers": layers}
        entries.append({"name": method.name, **add(f"methods/{method.name}.json", _text(document))})
        infos.update({pick.kernel_sha256: pick.kernel for layer in method.layers for pick in layer.picks})
    kernels = []
    for sha256, info in sorted(infos.items()):
        add(f"kernels/{sha256}.cubin", cubins[sha256])
        kernels.append({"sha256": sha256, "entry": info.entry, "arch": info.arch, "bytes": len(cubins[sha256]),
                        "programmatic": info.programmatic, "access": info.access})  # fmt: skip
    weights = None
    if tensors is not None or weights_file is not None:
        weights = add("weights.safetensors", _safetensors(tensors) if weights_file is None else pathlib.Path(weights_file))
    manifest = {"bundle_version": VERSION, "abi_version": ABI_VERSION, "layout_id": LAYOUT_ID, "methods": entries,
                "kernels": kernels, "weights": weights}  # fmt: skip
    add("manifest.json", _text(manifest))
    _write_files(pathlib.Path(path), files)


def _check_names(names):
    """ValueError for a method's name that cannot be a file's, as qgemmctl says, or is there twice."""
    for name in names:
        if re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}", name) is None:
            raise ValueError(f"method name {name!r} is not allowed: up to 64 letters, digits, '_', '-' and '.'")
        if names.count(name) > 1:
            raise ValueError(f"method {name} is there twice")


def _digest(data):
    """(SHA-256, size) of bytes or of a file."""
    if not isinstance(data, pathlib.Path):
        return hashlib.sha256(data).hexdigest(), len(data)
    digest = hashlib.sha256()
    with open(data, "rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest(), data.stat().st_size


def _write_files(path, files):
    """All of them beside `path` first: whoever opens it finds a whole bundle, and one that fails leaves nothing behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".tar" and not _may_replace(path):
        raise FileExistsError(f"{path} exists and is no bundle: name another path")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as staging:
        made = pathlib.Path(staging) / path.name
        if path.suffix == ".tar":
            _write_tar(made, files)
            os.replace(made, path)
            return
        for name, data in files.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(data, pathlib.Path):
                os.replace(data, made / name)
            else:
                (made / name).write_bytes(data)
        for attempt in range(100):  # another writer may put its own there between the two calls
            if path.exists():
                with contextlib.suppress(FileNotFoundError):
                    os.rename(path, pathlib.Path(staging) / f"before.{attempt}")
            try:
                os.rename(made, path)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        raise FileExistsError(f"{path} is written by others again and again")


def _may_replace(path):
    """Whether an earlier bundle is there, or nothing, or an empty folder; manifest.json alone is no sign of a bundle."""
    while True:
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            if not os.listdir(folder):
                return True
            with open(os.open("manifest.json", os.O_RDONLY, dir_fd=folder), "rb") as manifest:
                return "bundle_version" in json.loads(manifest.read())
        except (OSError, ValueError, TypeError):
            # Unless another writer has just taken this folder away: then whatever is there now decides.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(folder), os.stat(path)):
                    return False
        finally:
            os.close(folder)


def _write_tar(path, files):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(name)
            is_file = isinstance(data, pathlib.Path)
            member.size = data.stat().st_size if is_file else len(data)
            with open(data, "rb") if is_file else io.BytesIO(data) as source:
                archive.addfile(member, source)
