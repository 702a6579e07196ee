"""Which kernel runs a problem with M rows: the tuned picks of this process, by problem and bucket."""

import ctypes
import dataclasses
import threading

from qgemm import bundle
from qgemm.buckets import LADDER, bucket_for
from qgemm.packing import LAYOUT_ID
from qgemm.torch.driver import CLUSTER_ATTRIBUTE, LaunchAttribute, LaunchConfig, driver
from qgemm.types import IntegerArgument, PointerArgument

# Launches that a thread remembers; a program has some hundred layers times a few buckets.
_MOST_LAUNCHES = 1 << 16


class PreparedLaunch:
    """One kernel with its weights' addresses filled in; a launch sets the rest. Belongs to one thread."""

    def __init__(self, cuda, function, spec, addresses):
        """`addresses`: of the roles "weights", "scales", "zeros", "steps" and "bias"; 0 where there is none."""
        self.spec = spec
        self._cuda, self._function = cuda, function
        self._by_role = {"x": [], "y": [], "workspace": [], "residual": []}
        self._by_symbol = {"m": [], "ldx": [], "ldy": [], "ldr": []}
        self._x_maps, self._x_key = [], None
        values = [self._value(argument, addresses) for argument in spec.arguments]
        self._keep = values
        self._params = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self._config = LaunchConfig((0, spec.grid_n, spec.split_k), (spec.block_threads, 1, 1), spec.dynamic_smem_bytes)
        if spec.cluster_z > 1:
            self._cluster = LaunchAttribute(CLUSTER_ATTRIBUTE, b"", (1, 1, spec.cluster_z))
            self._config.attributes, self._config.attribute_count = ctypes.pointer(self._cluster), 1

    def _value(self, argument, addresses):
        if isinstance(argument, PointerArgument):
            if argument.role in self._by_role:
                value = ctypes.c_uint64(0)
                self._by_role[argument.role].append((argument, value))
                return value
            address = addresses[argument.role]
            self._check_alignment(argument, address)
            return ctypes.c_uint64(address)
        if isinstance(argument, IntegerArgument):
            kind = ctypes.c_int32 if argument.bits == 32 else ctypes.c_int64
            if isinstance(argument.value, int):
                return kind(argument.value)
            value = kind(0)
            self._by_symbol[argument.value].append(value)
            return value
        memory = (ctypes.c_ubyte * 192)()
        tensor_map = (ctypes.c_ubyte * 128).from_buffer(memory, -ctypes.addressof(memory) % 64)
        if argument.role == "x":
            self._x_maps.append((argument, tensor_map))
        else:
            self._encode(argument, tensor_map, addresses[argument.role], argument.rows, argument.row_pitch_bytes)
        return tensor_map

    @staticmethod
    def _check_alignment(argument, address):
        if argument.alignment and address % argument.alignment:
            raise ValueError(f"argument {argument.name} at {address:#x} is not aligned to {argument.alignment} bytes")

    def _encode(self, argument, out, address, rows, pitch):
        self._cuda.encode_tensor_map(
            out, argument.name, argument.element, argument.columns, rows, pitch, argument.box_columns,
            argument.box_rows, argument.swizzle_bytes, address,
        )  # fmt: skip

    def run(self, x, y, workspace, m, ldx, ldy, stream, residual=0, ldr=0):
        """Launches on `stream`; x, y, workspace and residual are addresses, strides are in elements. Never
        synchronises."""
        for role, address in (("x", x), ("y", y), ("workspace", workspace), ("residual", residual)):
            for argument, value in self._by_role[role]:
                self._check_alignment(argument, address)
                value.value = address
        for symbol, number in (("m", m), ("ldx", ldx), ("ldy", ldy), ("ldr", ldr)):
            for value in self._by_symbol[symbol]:
                value.value = number
        if self._x_maps and self._x_key != (x, m, ldx):
            for argument, tensor_map in self._x_maps:
                pitch = argument.row_pitch_bytes or ldx * self._cuda.ELEMENTS[argument.element][1]
                self._encode(argument, tensor_map, x, argument.rows or m, pitch)
            self._x_key = (x, m, ldx)
        self._config.grid[0] = -(-m // self.spec.tile_m)
        self._config.stream = stream
        self._cuda.launch(self._config, self._function, self._params)


class KernelTable:
    """Picks with their cubins. Thread-safe; functions are loaded once per device, at their first use or by `preload`."""

    def __init__(self):
        self._lock = threading.Lock()
        self._picks = {}  # Problem -> {bucket: Pick}
        self._cubins = {}  # sha256 -> bytes
        self._functions = {}  # (device index, sha256) -> [function, shared memory allowed]
        self._version = 0
        self._local = threading.local()

    def add(self, picks, kernels):
        """`kernels`: {sha256: Kernel or bytes}. ValueError for a pick that this client cannot launch; DataLoss for a kernel
        that writes more than its launch says: the operator declares that it changes none of its inputs."""
        picks = [self._with_info(pick, kernels) for pick in picks]
        for pick in picks:
            if pick.launch.layout_id != LAYOUT_ID or pick.launch.abi_version != bundle.ABI_VERSION:
                raise ValueError(
                    f"the pick of {pick.problem} is of layout {pick.launch.layout_id}, ABI {pick.launch.abi_version}: "
                    f"this client knows {LAYOUT_ID}, {bundle.ABI_VERSION}"
                )
            if pick.kernel_sha256 not in kernels:
                raise ValueError(f"kernel {pick.kernel_sha256} of {pick.problem} is missing")
            bundle.check_access(pick)
        with self._lock:
            for pick in picks:
                kernel = kernels[pick.kernel_sha256]
                self._picks.setdefault(pick.problem.canonical(), {})[pick.m_bucket] = pick
                self._cubins[pick.kernel_sha256] = getattr(kernel, "cubin", kernel)
            self._version += 1

    @staticmethod
    def _with_info(pick, kernels):
        """A fetched kernel knows more than the pick says of it."""
        kernel = kernels.get(pick.kernel_sha256)
        return dataclasses.replace(pick, kernel=kernel.info) if hasattr(kernel, "info") else pick

    def clear(self):
        with self._lock:
            self._picks, self._version = {}, self._version + 1

    def problems(self):
        with self._lock:
            return {problem: sorted(buckets) for problem, buckets in self._picks.items()}

    def pick(self, problem, m):
        """The pick that serves m rows: its bucket's, else the next larger one's. LookupError where there is none."""
        with self._lock:
            buckets = self._picks.get(problem)
            if not buckets:
                raise LookupError(f"{problem} is not tuned: qgemm.torch.tune(...) or load_kernels(...) it first")
            serving = [bucket for bucket in buckets if bucket >= bucket_for(m)]
            if not serving:
                raise LookupError(
                    f"{problem} is tuned for M up to {max(buckets)}, not for M = {m}: tune it for bucket "
                    f"{bucket_for(m)} or for {LADDER[-1]}, which serves every M above"
                )
            return buckets[min(serving)]

    def launch(self, call, problem_of, m, device, addresses):
        """The PreparedLaunch of this thread for a call, M, device and the addresses of its weights. `call` is what
        tells problems apart and is cheap to hash; problem_of(*call) is the Problem."""
        if getattr(self._local, "version", None) != self._version or len(self._local.launches) >= _MOST_LAUNCHES:
            self._local.version, self._local.launches = self._version, {}
            driver().bind(device)
        # All M of a bucket have the same pick.
        key = (call, bucket_for(m), device, addresses)
        found = self._local.launches.get(key)
        if found is None:
            pick = self.pick(problem_of(*call), m)
            by_role = dict(zip(("weights", "scales", "zeros", "steps", "bias"), addresses))
            found = PreparedLaunch(driver(), self._function(pick, device), pick.launch, by_role)
            self._local.launches[key] = found
        return found

    def _function(self, pick, device):
        with self._lock:
            key = (device, pick.kernel_sha256)
            if key not in self._functions:
                self._functions[key] = [driver().load(self._cubins[pick.kernel_sha256], pick.launch.entry), 0, 0]
            entry = self._functions[key]
            # Picks of one kernel differ in what they need: what was allowed is only ever raised.
            smem, cluster = pick.launch.dynamic_smem_bytes, pick.launch.cluster_z
            if smem > entry[1] or cluster > entry[2]:
                entry[1:] = max(smem, entry[1]), max(cluster, entry[2])
                driver().allow(entry[0], entry[1], entry[2])
            return entry[0]

    def preload(self, device):
        """Loads every kernel on a device, so that no launch waits for it."""
        with self._lock:
            picks = [pick for buckets in self._picks.values() for pick in buckets.values()]
        for pick in picks:
            self._function(pick, device)

    def layer(self, name, problem, weight_key=""):
        """A bundle.Layer with all picks of a problem."""
        with self._lock:
            buckets = self._picks.get(problem, {})
            if not buckets:
                raise LookupError(f"{problem} is not tuned: qgemm.torch.tune(...) or load_kernels(...) it first")
            return bundle.Layer(name, problem, weight_key, tuple(buckets[b] for b in sorted(buckets)))

    def cubins(self):
        with self._lock:
            return dict(self._cubins)

    def load(self, path):
        """Adds the kernels of a bundle, of all its methods."""
        opened = bundle.Bundle.open(path)
        picks = [pick for name in opened.methods for layer in opened.method(name).layers for pick in layer.picks]
        self.add(picks, {sha256: opened.cubin(sha256) for sha256 in {pick.kernel_sha256 for pick in picks}})


KERNELS = KernelTable()
