"""The values of a bundle's manifests and their JSON; client/bundle/manifest.schema.json in the repository is its schema.

What is read is checked: DataLoss names the field that is missing or has a value that is not allowed.
"""

import dataclasses

from qgemm.errors import DataLoss
from qgemm.packing import check_format
from qgemm.types import (
    IntegerArgument,
    KernelInfo,
    LaunchSpec,
    Pick,
    PointerArgument,
    Problem,
    TensorMapArgument,
    WeightFormat,
    check_act_quantization,
)

_ROLES = ("x", "weights", "scales", "zeros", "bias", "y", "steps", "workspace", "residual")
_SYMBOLS = ("m", "ldx", "ldy", "ldr")
_ELEMENTS = ("bf16", "fp16", "u32", "u64")
_SIZES = ("tile_m", "tile_n", "grid_n", "split_k", "cluster_z", "block_threads")  # at least 1
_WORKSPACE_FIELDS = ("ticket_bytes_per_m_tile", "partial_bytes_per_m_tile")
_PICK_TEXTS = ("config", "reduction", "target", "source", "confidence")
_PICK_FIELDS = ("m_bucket", *_PICK_TEXTS, "time_us", "spread_us", "predicted_us")
_SPEC_FIELDS = ("abi_version", "layout_id", "entry", *_SIZES, "dynamic_smem_bytes", "max_m")


def _argument_to_json(argument):
    fields = dataclasses.asdict(argument)
    name = fields.pop("name")
    if isinstance(argument, PointerArgument):
        return {"kind": "pointer", **fields, "name": name}
    if isinstance(argument, TensorMapArgument):
        return {"kind": "tensor_map", **fields, "name": name}
    value = {"constant" if isinstance(argument.value, int) else "symbol": argument.value}
    return {"kind": f"i{argument.bits}", **value, "name": name}


def _argument_from_json(f):
    name, kind = f.text("name"), f.word("kind", ("pointer", "tensor_map", "i32", "i64"))
    if kind == "pointer":
        return PointerArgument(name, f.word("role", _ROLES), f.flag("read"), f.flag("written"), f.whole("alignment"))
    if kind == "tensor_map":
        swizzle = f.whole("swizzle_bytes")
        if swizzle not in (0, 128):
            raise DataLoss(f"{f.where}.swizzle_bytes must be 0 or 128")
        return TensorMapArgument(
            name, f.word("role", _ROLES), f.word("element", _ELEMENTS), f.long("columns", 1), f.long("rows"),
            f.long("row_pitch_bytes"), f.whole("box_columns", 1), f.whole("box_rows", 1), swizzle,
        )  # fmt: skip
    value = f.word("symbol", _SYMBOLS) if "symbol" in f else f.long("constant", -(1 << 63))
    return IntegerArgument(name, int(kind[1:]), value)


def problem_to_json(problem):
    p = problem.canonical()
    f = {"bits": p.format.bits, "group_size": p.format.group_size, "scale": p.format.scale, "zero": p.format.zero,
         "scale_levels": p.format.scale_levels}  # fmt: skip
    epilogue = {"bias": p.bias, "activation": p.activation, "gated": p.gated, "residual": p.residual}
    return {"n": p.n, "k": p.k, "format": f, "act": p.act, "act_quantization": p.act_quantization, "out": p.out,
            "epilogue": epilogue}  # fmt: skip


def problem_from_json(f):
    """`f`: json_fields.Fields, as of every reader here."""
    of_format, epilogue = f.object("format"), f.object("epilogue")
    problem = Problem(
        f.long("n", 1),
        f.long("k", 1),
        WeightFormat(
            of_format.whole("bits"), of_format.whole("group_size"), of_format.text("scale"), of_format.text("zero"),
            of_format.whole("scale_levels"),
        ),
        f.text("act"),
        epilogue.flag("bias"),
        f.text("out"),
        epilogue.text("activation"),
        epilogue.flag("gated"),
        epilogue.flag("residual"),
        # Bundles of before there was such a thing do not say.
        f.text("act_quantization") if "act_quantization" in f else "none",
    )  # fmt: skip
    try:
        check_format(problem.format)
        check_act_quantization(problem.act_quantization, problem.format)
        problem.to_proto()  # knows the words
    except ValueError as error:
        raise DataLoss(f"{f.where}: {error}") from None
    return problem


def pick_to_json(pick):
    spec = pick.launch
    launch = {field: getattr(spec, field) for field in _SPEC_FIELDS}
    launch["workspace"] = {field: getattr(spec, field) for field in _WORKSPACE_FIELDS}
    launch["arguments"] = [_argument_to_json(argument) for argument in spec.arguments]
    fields = {field: getattr(pick, field) for field in _PICK_FIELDS}
    return {"m_bucket": fields.pop("m_bucket"), "kernel": pick.kernel_sha256, **fields, "launch": launch}


def _launch_from_json(f):
    workspace = f.object("workspace")
    return LaunchSpec(
        abi_version=f.whole("abi_version"),
        layout_id=f.text("layout_id"),
        entry=f.text("entry"),
        **{size: f.whole(size, 1) for size in _SIZES},
        dynamic_smem_bytes=f.whole("dynamic_smem_bytes"),
        max_m=f.long("max_m"),
        **{field: workspace.long(field) for field in _WORKSPACE_FIELDS},
        arguments=tuple(map(_argument_from_json, f.objects("arguments"))),
    )


def pick_from_json(f, problem, kernels):
    """`kernels`: {sha256: Fields} of the manifest."""
    launch, sha256 = _launch_from_json(f.object("launch")), f.sha256("kernel")
    if sha256 not in kernels:
        raise DataLoss(f"{f.where}.kernel {sha256} is not listed in manifest.json")
    texts = {field: f.text(field) for field in _PICK_TEXTS}
    kernel = kernels[sha256]
    info = KernelInfo(
        sha256, texts["config"], kernel.text("entry"), kernel.text("arch"), kernel.long("bytes"), 0, 0, 0, 0, 0, "",
        launch.abi_version, launch.layout_id, 0.0, 0, _access_of(kernel), kernel.flag("programmatic"),
    )  # fmt: skip
    times = {field: f.number(field) if field in f else None for field in ("time_us", "spread_us")}
    return Pick(
        problem=problem, effort="", split_k=launch.split_k, relative_error=None, kernel=info, launch=launch, candidates=0,
        verified=0, timed=0, rejected=0, driver_version="", proto=None, m_bucket=f.whole("m_bucket", 1),
        predicted_us=f.number("predicted_us"), **texts, **times,
    )  # fmt: skip


def _access_of(kernel):
    """A kernel's access report, or None."""
    if "access" not in kernel:
        return None
    report = kernel.object("access")
    rows = [
        {"index": row.whole("index"), "read": row.flag("read"), "written": row.flag("written"), "alignment": row.whole("alignment")}
        for row in report.objects("parameters")
    ]
    return {"failure": report.text("failure") if "failure" in report else None, "parameters": rows}
