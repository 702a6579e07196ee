"""The vocabulary of requests and answers as frozen dataclasses. Times are microseconds unless a name says otherwise.

Words are those of `qgemmctl`: types "bf16" and "fp16", zero points "none", "int" and "float", sources "MEASURED" and "MODEL".
"""

import dataclasses
import math
import re
from typing import Optional, Tuple, Union

from qgemm import api

_ZERO_WORDS = {"ZERO_POINT_NONE": "none", "ZERO_POINT_INTEGER": "int", "ZERO_POINT_FLOAT": "float"}


def _enum_word(enumeration, prefix, number):
    """The word of an enumerator: SCALAR_TYPE_BF16 -> "bf16"; "" for the unspecified one."""
    if number == 0:
        return ""
    for name, value in api.enum_values(enumeration).items():
        if value == number:
            return name[len(prefix) :].lower()
    return str(number)


def _enum_number(enumeration, prefix, field, word):
    values = api.enum_values(enumeration)
    name = prefix + word.upper().replace("-", "_")
    if name not in values:
        allowed = sorted(n[len(prefix) :].lower().replace("_", "-") for n, number in values.items() if number != 0)
        raise ValueError(f'{field} "{word}" is not allowed: use {", ".join(allowed)}')
    return values[name]


def effort_number(word):
    return _enum_number("Effort", "EFFORT_", "effort", word)


def scalar_number(field, word):
    return _enum_number("ScalarType", "SCALAR_TYPE_", field, word)


_FORMAT = re.compile(r"int(\d+)-(?:g(\d+)|channel)(?:-(bf16|fp16)(x2)?)?(?:-z(int|float))?")


@dataclasses.dataclass(frozen=True)
class WeightFormat:
    """How weights are quantized, codes q of `bits` bits and one scale s per `group_size` weights along K:
    zero "none": w = (q - 2^(bits-1)) * s; "int": w = (q - z) * s with a code z; "float": w = q * s + b with a number b."""

    bits: int = 4  # 4, 5, 6 or 8
    group_size: int = 128  # 16, 32, 64, 128 or 256; 0: channel-wise, one group per row
    scale: str = ""  # "bf16" or "fp16"; "": the activation type
    zero: str = "none"  # "none", "int" or "float"
    scale_levels: int = 1  # 2: s = step * code, an fp16 step per 256 weights and a signed byte per group; b likewise

    @classmethod
    def parse(cls, text):
        """From "int4-g128", "int4-g32-fp16-zint", "int8-channel-bf16" or "int6-g16-fp16x2" (two levels)."""
        found = _FORMAT.fullmatch(text)
        if found is None:
            raise ValueError(
                f'format "{text}" is not allowed: use such as int4-g128, int4-g32-fp16-zint, int8-channel or int6-g16-fp16x2'
            )
        return cls(int(found[1]), int(found[2] or 0), found[3] or "", found[5] or "none", 2 if found[4] else 1)

    def __str__(self):
        group = f"g{self.group_size}" if self.group_size else "channel"
        scale = f"-{self.scale}{'x2' if self.scale_levels == 2 else ''}" if self.scale else ""
        return f"int{self.bits}-{group}{scale}{'' if self.zero == 'none' else '-z' + self.zero}"

    @property
    def has_zeros(self):
        return self.zero != "none"

    def to_proto(self):
        message = api.message("WeightFormat")(bits=self.bits, group_size=self.group_size, scale_levels=self.scale_levels)
        if self.scale:
            message.scale_type = scalar_number("scale", self.scale)
        names = {word: name for name, word in _ZERO_WORDS.items()}
        values = api.enum_values("ZeroPoint")
        if names.get(self.zero) not in values:
            allowed = ", ".join(_ZERO_WORDS[name] for name in values if name in _ZERO_WORDS)
            raise ValueError(f'zero "{self.zero}" is not allowed: use {allowed}')
        message.zero_point = values[names[self.zero]]
        return message

    @classmethod
    def from_proto(cls, message):
        names = {number: name for name, number in api.enum_values("ZeroPoint").items()}
        zero = _ZERO_WORDS.get(names.get(message.zero_point), "none")
        scale = _enum_word("ScalarType", "SCALAR_TYPE_", message.scale_type)
        return cls(message.bits, message.group_size, scale, zero, max(message.scale_levels, 1))


def as_format(value):
    """A WeightFormat from one or from its text."""
    return value if isinstance(value, WeightFormat) else WeightFormat.parse(value)


def check_act_quantization(word, format):
    """`word`, if a problem of this format may ask for it; else ValueError, in the daemon's words."""
    if word not in ("none", "int8"):
        raise ValueError(f'act_quantization "{word}" is not allowed: use none or int8')
    if word == "int8" and 0 < format.group_size < 32:
        raise ValueError(
            f"group_size {format.group_size} is not allowed with int8 activations, whose blocks have 32: use 32, 64, "
            "128, 256 or channel-wise"
        )
    return word


@dataclasses.dataclass(frozen=True)
class Problem:
    """Y = epilogue(X[M,K] @ dequant(W[N,K])^T). Fixes everything but M. The epilogue, in this order: bias, activation
    (gated: of row 2j of W, times row 2j + 1; Y has N / 2 columns), residual.

    `act_quantization` "int8": the kernel makes bytes of X, by row and 32 along K, each block by its largest magnitude;
    faster, and some 0.7 % off on normal X. A class of its own: only who asks for it gets it. Groups of 32 and more, or
    channel-wise."""

    n: int
    k: int
    format: WeightFormat = WeightFormat()
    act: str = "bf16"
    bias: bool = False
    out: str = ""  # "": the activation type; "fp32"
    activation: str = "none"  # "none", "silu", "gelu_tanh" or "relu"
    gated: bool = False
    residual: bool = False
    act_quantization: str = "none"  # "none" or "int8"

    @classmethod
    def parse(cls, shape, format="int4-g128", act="bf16", bias=False, **epilogue):
        """From a shape NxK, as the weight is stored: Problem.parse("5376x4096")."""
        found = re.fullmatch(r"(\d+)[xX](\d+)", shape)
        if found is None:
            raise ValueError(f'shape "{shape}" is not NxK: two whole numbers such as 5376x4096 are needed')
        return cls(int(found[1]), int(found[2]), as_format(format), act, bias, **epilogue)

    @property
    def y_columns(self):
        return self.n // 2 if self.gated else self.n

    def canonical(self):
        """With the defaults filled in that a daemon would fill in: equal problems compare equal."""
        f = self.format if self.format.scale else dataclasses.replace(self.format, scale=self.act)
        return dataclasses.replace(self, format=f, out=self.out or self.act)

    def __str__(self):
        full = self.canonical()
        words = [f"{self.n}x{self.k} {full.format} act {full.act}"]
        words += [f"as {self.act_quantization}"] if self.act_quantization != "none" else []
        words += [f"out {full.out}"] if full.out != full.act else []
        words += ["bias"] if self.bias else []
        words += [self.activation] if self.activation != "none" else []
        words += ["gated"] if self.gated else []
        words += ["residual"] if self.residual else []
        return " ".join(words)

    def to_proto(self):
        message = api.message("Problem")(n=self.n, k=self.k, format=self.format.to_proto(), act=scalar_number("act", self.act))
        if self.out:
            message.out = scalar_number("out", self.out)
        if self.act_quantization != "none":
            message.act_quantization = _enum_number(
                "ActivationQuantization", "ACTIVATION_QUANTIZATION_", "act_quantization", self.act_quantization
            )
        message.epilogue.bias, message.epilogue.gated, message.epilogue.residual = self.bias, self.gated, self.residual
        if self.activation != "none":
            message.epilogue.activation = _enum_number("Activation", "ACTIVATION_", "activation", self.activation)
        return message

    @classmethod
    def from_proto(cls, message):
        e = message.epilogue
        return cls(
            message.n, message.k, WeightFormat.from_proto(message.format),
            _enum_word("ScalarType", "SCALAR_TYPE_", message.act), e.bias,
            _enum_word("ScalarType", "SCALAR_TYPE_", message.out),
            _enum_word("Activation", "ACTIVATION_", e.activation) or "none", e.gated, e.residual,
            _enum_word("ActivationQuantization", "ACTIVATION_QUANTIZATION_", message.act_quantization) or "none",
        ).canonical()  # fmt: skip


def as_problem(value):
    """A Problem from one or from its shape's text."""
    return value if isinstance(value, Problem) else Problem.parse(value)


@dataclasses.dataclass(frozen=True)
class PointerArgument:
    """8 bytes: the address of what `role` names."""

    name: str
    role: str  # "x", "weights", "scales", "zeros", "steps", "bias", "residual", "y", "workspace"
    read: bool
    written: bool
    alignment: int  # bytes


@dataclasses.dataclass(frozen=True)
class IntegerArgument:
    """4 or 8 bytes: a number, or what `value` names at launch: "m", "ldx", "ldy" or "ldr" (in elements)."""

    name: str
    bits: int
    value: Union[int, str]


@dataclasses.dataclass(frozen=True)
class TensorMapArgument:
    """128 bytes by value, 64-byte aligned: a CUtensorMap that the launcher makes for its own pointer."""

    name: str
    role: str
    element: str  # "bf16", "fp16", "u32", "u64"
    columns: int
    rows: int  # 0: the launch's M
    row_pitch_bytes: int  # 0: ldx elements
    box_columns: int
    box_rows: int
    swizzle_bytes: int


def _argument(message):
    def role(number):
        return _enum_word("KernelArgument.PointerRole", "POINTER_ROLE_", number)

    kind = message.WhichOneof("kind")
    if kind == "pointer":
        pointer = message.pointer
        return PointerArgument(message.name, role(pointer.role), pointer.read, pointer.written, pointer.alignment)
    if kind in ("i32", "i64"):
        integer = getattr(message, kind)
        value = integer.constant
        if integer.WhichOneof("value") == "symbol":
            value = _enum_word("KernelArgument.Symbol", "SYMBOL_", integer.symbol)
        return IntegerArgument(message.name, int(kind[1:]), value)
    if kind == "tensor_map":
        tensor = message.tensor_map
        element = _enum_word("KernelArgument.TensorMap.Element", "ELEMENT_", tensor.element)
        return TensorMapArgument(
            message.name, role(tensor.role), element, tensor.columns, tensor.rows, tensor.row_pitch_bytes,
            tensor.box_columns, tensor.box_rows, tensor.swizzle_bytes,
        )  # fmt: skip
    raise ValueError(f'argument "{message.name}" is of a kind that this client does not know: update it')


@dataclasses.dataclass(frozen=True)
class LaunchSpec:
    """How to launch a kernel for a real M with the CUDA driver alone; proto/qgemm/v1/types.proto has the contract."""

    abi_version: int
    layout_id: str
    entry: str
    tile_m: int
    tile_n: int
    grid_n: int
    split_k: int
    block_threads: int
    dynamic_smem_bytes: int
    max_m: int
    cluster_z: int
    ticket_bytes_per_m_tile: int
    partial_bytes_per_m_tile: int
    arguments: Tuple[Union[PointerArgument, IntegerArgument, TensorMapArgument], ...]

    def grid(self, m):
        return (math.ceil(m / self.tile_m), self.grid_n, self.split_k)

    def ticket_bytes(self, m):
        """Leading bytes of the workspace that must be zero before the first launch; launches leave them zero."""
        return (math.ceil(m / self.tile_m) * self.ticket_bytes_per_m_tile + 255) // 256 * 256

    def workspace_bytes(self, m):
        """Bytes of scratch memory for a launch with m rows; 0: none."""
        return self.ticket_bytes(m) + math.ceil(m / self.tile_m) * self.partial_bytes_per_m_tile

    @classmethod
    def from_proto(cls, message):
        return cls(
            message.abi_version, message.layout_id, message.entry, message.tile_m, message.tile_n, message.grid_n,
            message.split_k, message.block_threads, message.dynamic_smem_bytes, message.max_m,
            max(message.cluster_z, 1), message.workspace.ticket_bytes_per_m_tile,
            message.workspace.partial_bytes_per_m_tile, tuple(_argument(a) for a in message.arguments),
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class KernelInfo:
    """A compiled kernel without its bytes."""

    sha256: str  # of exactly the cubin's bytes
    config: str
    entry: str
    arch: str
    cubin_bytes: int
    registers: int
    static_smem_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    toolchain: str
    abi_version: int
    layout_id: str
    compile_ms: float
    created_unix_ms: int
    # What its PTX reads and writes: {"failure": None or why it is not known, "parameters": [{"index", "read", "written",
    # "alignment"}]}; None where the daemon did not say.
    access: Optional[dict] = dataclasses.field(default=None, repr=False, compare=False)
    # It waits for the kernel before it, by its PTX, and may be launched programmatically; False also where nobody looked.
    programmatic: bool = dataclasses.field(default=False, repr=False, compare=False)

    @classmethod
    def from_proto(cls, message):
        names = [field.name for field in dataclasses.fields(cls) if field.name not in ("access", "programmatic")]
        return cls(*(getattr(message, name) for name in names), access=_access_from_proto(message))


def _access_from_proto(message):
    if not message.HasField("access"):
        return None
    columns = ("index", "read", "written", "alignment")
    rows = [{column: getattr(row, column) for column in columns} for row in message.access.parameters]
    return {"failure": message.access.failure or None, "parameters": rows}


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A fetched kernel; `launch` is there when it was asked for by its pick."""

    info: KernelInfo
    cubin: bytes = dataclasses.field(repr=False)
    launch: Optional[LaunchSpec] = dataclasses.field(default=None, repr=False)

    @property
    def sha256(self):
        return self.info.sha256

    def save(self, path):
        with open(path, "wb") as file:
            file.write(self.cubin)


@dataclasses.dataclass(frozen=True)
class Pick:
    """The chosen candidate for (problem, bucket, device class or profile), with its evidence."""

    problem: Problem
    m_bucket: int  # largest M served; the last bucket, 4096, is open-ended
    target: str
    source: str  # "MEASURED": verified and timed; "MODEL": predicted, nothing was launched
    effort: str
    config: str
    split_k: int
    reduction: str
    time_us: Optional[float]  # median; None for MODEL
    predicted_us: float
    spread_us: Optional[float]  # interquartile range; None for MODEL
    relative_error: Optional[float]
    confidence: str
    kernel: KernelInfo
    launch: LaunchSpec = dataclasses.field(repr=False)
    candidates: int
    verified: int
    timed: int
    rejected: int
    driver_version: str
    proto: object = dataclasses.field(repr=False, compare=False)  # the API's own message

    @property
    def kernel_sha256(self):
        return self.kernel.sha256

    @classmethod
    def from_proto(cls, message):
        def optional(field):
            return getattr(message, field) if message.HasField(field) else None

        return cls(
            problem=Problem.from_proto(message.problem),
            m_bucket=message.m_bucket,
            target=message.target,
            source=_enum_word("PickSource", "PICK_SOURCE_", message.source).upper(),
            effort=_enum_word("Effort", "EFFORT_", message.effort).replace("_", "-"),
            config=message.config,
            split_k=message.split_k,
            reduction=_enum_word("Reduction", "REDUCTION_", message.reduction),
            time_us=optional("time_us"),
            predicted_us=message.predicted_us,
            spread_us=optional("spread_us"),
            relative_error=optional("relative_error"),
            confidence=_enum_word("Confidence", "CONFIDENCE_", message.confidence),
            kernel=KernelInfo.from_proto(message.kernel),
            launch=LaunchSpec.from_proto(message.launch),
            candidates=message.candidates,
            verified=message.verified,
            timed=message.timed,
            rejected=message.rejected,
            driver_version=message.driver_version,
            proto=message,
        )


@dataclasses.dataclass(frozen=True)
class TuneResult:
    """What became of one (problem, bucket): a pick, or one sentence why there is none."""

    problem: Problem
    m_bucket: int
    pick: Optional[Pick]
    cached: bool = False
    stale: bool = False
    error: str = ""


@dataclasses.dataclass(frozen=True)
class TuneProgress:
    """How far a Tune is; candidates_wanted grows while it runs."""

    kernels_wanted: int = 0
    kernels_compiled: int = 0
    candidates_wanted: int = 0
    candidates_done: int = 0
    results_wanted: int = 0
    results_done: int = 0
    elapsed_s: float = 0.0

    @classmethod
    def from_proto(cls, message):
        return cls(*(getattr(message, field.name) for field in dataclasses.fields(cls)))


@dataclasses.dataclass(frozen=True)
class TuneSummary:
    compiles: int = 0
    timings: int = 0
    cache_hits: int = 0
    wall_s: float = 0.0
    compile_cpu_s: float = 0.0
    gpu_busy_s: float = 0.0

    @classmethod
    def from_proto(cls, message):
        return cls(*(getattr(message, field.name) for field in dataclasses.fields(cls)))


@dataclasses.dataclass(frozen=True)
class Job:
    """A Tune that is queued, runs, or ended; times are Unix milliseconds, 0 = not yet."""

    job_id: str
    state: str  # "queued", "running", "done", "failed", "cancelled"
    client: str
    job_class: str  # "interactive", "batch"
    priority: int
    detached: bool
    accepted_unix_ms: int
    started_unix_ms: int
    finished_unix_ms: int
    problems: int
    results_wanted: int
    results_done: int
    error: str
    description: str
    effort: str

    @classmethod
    def from_proto(cls, message):
        words = {
            "state": _enum_word("JobState", "JOB_STATE_", message.state),
            "job_class": _enum_word("JobClass", "JOB_CLASS_", message.job_class),
            "effort": _enum_word("Effort", "EFFORT_", message.effort).replace("_", "-"),
        }
        return cls(*(words.get(f.name, getattr(message, f.name)) for f in dataclasses.fields(cls)))


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """What a daemon works for."""

    has_gpu: bool
    product_name: str  # "" without a GPU
    sm_count: int
    driver_version: str
    state: str
    target: str
    arch: str
    toolchain: str
    compile_workers: int
    known_targets: Tuple[str, ...]
    server_version: str

    @classmethod
    def from_proto(cls, message):
        return cls(
            message.has_gpu, message.device.product_name, message.device.sm_count, message.driver_version,
            message.state, message.target, message.arch, message.toolchain, message.compile_workers,
            tuple(message.known_targets), message.server_version,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class CacheStats:
    data_dir: str
    schema_version: int
    kernels: int
    kernel_bytes: int
    picks: int
    timings: int
    disk_bytes: int
    hits: int
    misses: int
    corrupt: int

    @classmethod
    def from_proto(cls, message):
        return cls(*(getattr(message, field.name) for field in dataclasses.fields(cls)))
