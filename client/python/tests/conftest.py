"""Fixtures: `fake`, a scripted daemon inside this process, and `daemon`, the address of a real qgemmd without a GPU.

The environment names the programs of the build: QGEMMD, QGEMM_PACK_PLANES. Tests that need one skip without it.
"""

import os
import pathlib
import subprocess
from concurrent import futures

import grpc
import pytest

import qgemm
from qgemm import api


def pick_message(problem, m, **fields):
    """A Pick as a daemon would send it."""
    pick = api.message("Pick")(
        problem=problem.canonical().to_proto(), m_bucket=qgemm.bucket_for(m), target="h200", source=1, effort=2,
        config="mma_t1", split_k=4, reduction=2, time_us=9.5, predicted_us=8.25, spread_us=0.25, confidence=1,
    )  # fmt: skip
    pick.kernel.sha256 = "ab" * 32
    pick.launch.abi_version, pick.launch.tile_m, pick.launch.grid_n, pick.launch.split_k = 2, 16, 10, 4
    pick.launch.workspace.ticket_bytes_per_m_tile, pick.launch.workspace.partial_bytes_per_m_tile = 40, 4096
    pick.launch.arguments.add(name="x").pointer.role = 1
    pick.launch.arguments.add(name="m").i32.symbol = 1
    pick.launch.arguments.add(name="k").i32.constant = problem.k
    for name, value in fields.items():
        setattr(pick, name, value)
    return pick


_SERVICES = {
    "Tuner": ("Tune", "Lookup", "GetKernels", "ListJobs", "WatchJob", "CancelJob"),
    "Device": ("Describe",),
    "Cache": ("Stats",),
}


class FakeDaemon:
    """Answers from `script`: {"Tune": function of (request, context), ...}; counts the calls."""

    def __init__(self, address):
        self.address, self.script, self.calls, self.metadata = address, {}, [], []
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        for service, methods in _SERVICES.items():
            handlers = {}
            for name in methods:
                found = api.method(service, name)
                make = grpc.unary_stream_rpc_method_handler if found.streams else grpc.unary_unary_rpc_method_handler
                handlers[name] = make(
                    self._behaviour(name),
                    request_deserializer=found.request.FromString,
                    response_serializer=found.response.SerializeToString,
                )
            handler = grpc.method_handlers_generic_handler(f"{api.PACKAGE}.{service}", handlers)
            self.server.add_generic_rpc_handlers((handler,))
        self.server.add_insecure_port(address)
        self.server.start()

    def _behaviour(self, name):
        def run(request, context):
            self.calls.append(name)
            self.metadata.append(dict(context.invocation_metadata()))
            return self.script[name](request, context)

        return run


@pytest.fixture
def fake(tmp_path):
    daemon = FakeDaemon(f"unix:{tmp_path}/fake.sock")
    yield daemon
    daemon.server.stop(None).wait(10)


@pytest.fixture(scope="session")
def daemon(tmp_path_factory):
    qgemmd = os.environ.get("QGEMMD")
    if not qgemmd:
        pytest.skip("QGEMMD names no qgemmd")
    folder = tmp_path_factory.mktemp("qgemmd")
    address = f"unix:{folder}/qgemm.sock"
    command = [qgemmd, "--listen", address, "--data-dir", f"{folder}/data", "--device", "none", "--target", "h200"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        channel = grpc.insecure_channel(address)
        grpc.channel_ready_future(channel).result(timeout=30)
        channel.close()
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture(scope="session")
def pack_planes():
    """The C++ packer as a function: Canonical with NumPy arrays -> weights, scales, zeros, steps as bytes."""
    program = os.environ.get("QGEMM_PACK_PLANES")
    if not program or not pathlib.Path(program).exists():
        pytest.skip("QGEMM_PACK_PLANES names no program")

    def run(c):
        f = c.format
        head = f"{c.n} {c.k} {f.bits} {f.group_size} {f.scale} {f.zero} {f.scale_levels}\n".encode()
        parts = (c.codes, c.scales, c.zeros, c.offsets, c.scale_codes, c.offset_codes)
        data = head + b"".join(part.tobytes() for part in parts if part is not None)
        done = subprocess.run([program], input=data, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
        sizes, _, rest = done.stdout.partition(b"\n")
        planes = []
        for size in (int(word) for word in sizes.split()):
            planes.append(rest[:size])
            rest = rest[size:]
        assert len(planes) == 4 and not rest
        return planes

    return run


class ManualClock:
    """Time that passes only when somebody sleeps."""

    def __init__(self):
        self.now, self.slept = 1000.0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    async def sleep_async(self, seconds):
        self.sleep(seconds)


@pytest.fixture
def clock():
    return ManualClock()

