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
import tarfile
import tempfile
from typing import Dict, Optional, Tuple

import numpy as np

from qgemm.buckets import bucket_for
from qgemm.errors import DataLoss, FailedPrecondition, NotFound
from qgemm.packing import LAYOUT_ID
from qgemm.types import IntegerArgument, KernelInfo, LaunchSpec, Pick, PointerArgument, Problem, TensorMapArgument, WeightFormat

VERSION = 1
ABI_VERSION = 2
_SPEC_FIELDS = ("abi_version", "layout_id", "entry", "tile_m", "tile_n", "grid_n", "split_k", "cluster_z", "block_threads",
                "dynamic_smem_bytes", "max_m")  # fmt: skip
_WORKSPACE_FIELDS = ("ticket_bytes_per_m_tile", "partial_bytes_per_m_tile")
_PICK_FIELDS = ("m_bucket", "config", "reduction", "target", "source", "confidence", "time_us", "spread_us", "predicted_us")


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


# ---- values and their JSON ------------------------------------------------------------------------------------------


def _argument_to_json(argument):
    fields = dataclasses.asdict(argument)
    name = fields.pop("name")
    if isinstance(argument, PointerArgument):
        return {"kind": "pointer", **fields, "name": name}
    if isinstance(argument, TensorMapArgument):
        return {"kind": "tensor_map", **fields, "name": name}
    value = {"constant" if isinstance(argument.value, int) else "symbol": argument.value}
    return {"kind": f"i{argument.bits}", **value, "name": name}


def _argument_from_json(row):
    kind, fields = row["kind"], {key: value for key, value in row.items() if key != "kind"}
    if kind == "pointer":
        return PointerArgument(**fields)
    if kind == "tensor_map":
        return TensorMapArgument(**fields)
    if kind in ("i32", "i64"):
        return IntegerArgument(row["name"], int(kind[1:]), row["symbol"] if "symbol" in row else row["constant"])
    raise DataLoss(f"argument {row.get('name')} is of the kind {kind}: this client knows pointer, tensor_map, i32, i64")


def _problem_to_json(problem):
    p = problem.canonical()
    f = {"bits": p.format.bits, "group_size": p.format.group_size, "scale": p.format.scale, "zero": p.format.zero,
         "scale_levels": p.format.scale_levels}  # fmt: skip
    epilogue = {"bias": p.bias, "activation": p.activation, "gated": p.gated, "residual": p.residual}
    return {"n": p.n, "k": p.k, "format": f, "act": p.act, "act_quantization": p.act_quantization, "out": p.out,
            "epilogue": epilogue}  # fmt: skip


def _problem_from_json(row):
    f = WeightFormat(**{key: row["format"][key] for key in ("bits", "group_size", "scale", "zero", "scale_levels")})
    epilogue = {key: row["epilogue"][key] for key in ("bias", "activation", "gated", "residual")}
    quantization = row.get("act_quantization", "none")  # bundles of before there was such a thing do not say
    return Problem(row["n"], row["k"], f, row["act"], out=row["out"], act_quantization=quantization, **epilogue)


def _pick_to_json(pick):
    spec = pick.launch
    launch = {field: getattr(spec, field) for field in _SPEC_FIELDS}
    launch["workspace"] = {field: getattr(spec, field) for field in _WORKSPACE_FIELDS}
    launch["arguments"] = [_argument_to_json(argument) for argument in spec.arguments]
    fields = {field: getattr(pick, field) for field in _PICK_FIELDS}
    return {"m_bucket": fields.pop("m_bucket"), "kernel": pick.kernel_sha256, **fields, "launch": launch}


def _pick_from_json(row, problem, kernels):
    spec = row["launch"]
    launch = LaunchSpec(
        **{field: spec[field] for field in _SPEC_FIELDS},
        **{field: spec["workspace"][field] for field in _WORKSPACE_FIELDS},
        arguments=tuple(_argument_from_json(argument) for argument in spec["arguments"]),
    )
    kernel = kernels[row["kernel"]]
    info = KernelInfo(
        kernel["sha256"], row["config"], kernel["entry"], kernel["arch"], kernel["bytes"], 0, 0, 0, 0, 0, "",
        launch.abi_version, launch.layout_id, 0.0, 0, kernel.get("access"),
        kernel.get("programmatic", False),
    )  # fmt: skip
    fields = {field: row.get(field) for field in _PICK_FIELDS}
    return Pick(
        problem=problem, effort="", split_k=launch.split_k, relative_error=None, kernel=info, launch=launch, candidates=0,
        verified=0, timed=0, rejected=0, driver_version="", proto=None, **fields,
    )  # fmt: skip


# ---- reading --------------------------------------------------------------------------------------------------------


class Bundle:
    """A bundle on disk, read-only. DataLoss: a file is damaged; FailedPrecondition: of a version not known here."""

    def __init__(self, path, files):
        self.path, self._files = path, files
        manifest = self._json("manifest.json")
        wanted = {"bundle_version": VERSION, "abi_version": ABI_VERSION, "layout_id": LAYOUT_ID}
        for field, value in wanted.items():
            if manifest.get(field) != value:
                raise FailedPrecondition(f"{path}: {field} is {manifest.get(field)}: this client knows {value}")
        self.manifest = manifest
        self._kernels = {kernel["sha256"]: kernel for kernel in manifest["kernels"]}

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

    def _json(self, name):
        try:
            return json.loads(self._read(name))
        except ValueError as error:
            raise DataLoss(f"{self.path}: {name} is not JSON: {error}") from None

    def _checked(self, entry):
        data = self._read(entry["file"])
        if len(data) != entry["bytes"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
            raise DataLoss(f"{self.path}: file {entry['file']} has other bytes than the manifest says")
        return data

    @property
    def methods(self):
        """The names of the exported methods."""
        return [entry["name"] for entry in self.manifest["methods"]]

    def method(self, name):
        for entry in self.manifest["methods"]:
            if entry["name"] == name:
                break
        else:
            raise NotFound(f"{self.path} has no method {name}: there are {', '.join(self.methods)}")
        document = json.loads(self._checked(entry))
        try:
            layers = tuple(self._layer(row) for row in document["layers"])
        except (KeyError, TypeError) as error:
            raise DataLoss(f"{self.path}: {entry['file']} lacks or has too much: {error}") from None
        return Method(name, document.get("static_m"), layers)

    def _layer(self, row):
        problem = _problem_from_json(row["problem"])
        picks = tuple(_pick_from_json(pick, problem, self._kernels) for pick in row["picks"])
        return Layer(row["name"], problem, row.get("weights") or "", picks)

    def cubin(self, sha256):
        """A kernel's bytes, with their digest checked."""
        if sha256 not in self._kernels:
            raise NotFound(f"{self.path} has no kernel {sha256}")
        return self._checked({**self._kernels[sha256], "file": f"kernels/{sha256}.cubin"})

    def weights(self):
        """{name: uint8 array} of all tensors of the weights file, as bytes; {} without one."""
        entry = self.manifest["weights"]
        return {} if entry is None else _read_safetensors(self._checked(entry))

    def planes(self, layer, weights=None):
        """{"weights", "scales", ...: uint8 array} of a layer; `weights`: what weights() gave, to read it once."""
        tensors = self.weights() if weights is None else weights
        prefix = f"{layer.weight_key}."
        return {name[len(prefix) :]: data for name, data in tensors.items() if name.startswith(prefix)}

    def verify(self):
        """Raises DataLoss for the first file that is missing or damaged, or kernel that writes what its launch does not say;
        else returns self."""
        for sha256 in self._kernels:
            self.cubin(sha256)
        for name in self.methods:
            for layer in self.method(name).layers:
                for pick in layer.picks:
                    check_access(pick)
        self.weights()
        return self


def _slice_reader(path, offset, size):
    def read():
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(size)

    return read


def _read_safetensors(data):
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    body = np.frombuffer(data, np.uint8)[8 + size :]
    return {n: body[slice(*entry["data_offsets"])] for n, entry in header.items() if n != "__metadata__"}


# ---- writing --------------------------------------------------------------------------------------------------------


def _safetensors(tensors):
    """{name: (dtype, shape, bytes)} -> a file's bytes."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in sorted(tensors.items()):
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, (_, _, data) in sorted(tensors.items()))


def _text(document):
    return (json.dumps(document, indent=1) + "\n").encode()


def write(path, methods, cubins, tensors=None, weights_file=None):
    """Writes a bundle to a directory, or to one file where `path` ends with .tar. `methods`: of Method; `cubins`: {sha256:
    bytes} of all their picks; `tensors`: {name: (dtype, shape, bytes)} of the weights file, or `weights_file`: the path of
    a finished one, which is moved; neither: without one."""
    files: Dict[str, object] = {}  # bytes, or the path of a file to move

    def add(name, data):
        files[name] = data
        digest, size = _digest(data)
        return {"file": name, "bytes": size, "sha256": digest}

    infos, entries = {}, []
    for method in sorted(methods, key=lambda m: m.name):
        layers = [
            {"name": layer.name, "weights": layer.weight_key or None, "problem": _problem_to_json(layer.problem),
             "picks": [_pick_to_json(pick) for pick in layer.picks]}
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
