"""qgemm.torch on a GPU, with a daemon that has it: QGEMM_SERVER names one. Skipped elsewhere.

    PYTHONPATH=python QGEMM_SERVER=unix:/tmp/qgemm.sock python3 -m pytest -q tests/test_torch_gpu.py
"""

import gc
import os
import pathlib
import subprocess
from concurrent import futures

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import qgemm  # noqa: E402
import qgemm.torch  # noqa: E402
from qgemm import weight_store  # noqa: E402
from qgemm.torch.op import workspaces  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not os.environ.get("QGEMM_SERVER"), reason="no GPU, or QGEMM_SERVER is not set"
)
TOLERANCE = {torch.bfloat16: 3e-3, torch.float16: 6e-4}
ROWS = (1, 2, 3, 7, 16, 17, 33, 64, 65, 100, 257, 513, 2001)


@pytest.fixture(scope="module")
def client():
    with qgemm.Client(tune_timeout=300) as made:
        yield made


def tuned(client, n, k, format="int4-g128", dtype=torch.bfloat16, bias=False, m=qgemm.LADDER):
    torch.manual_seed(n + k)
    module = nn.Linear(k, n, bias=bias, dtype=dtype, device="cuda")
    layer = qgemm.torch.QuantizedLinear.from_linear(module, format)
    qgemm.torch.tune(layer, client, m=m)
    return layer


def expected(layer, x):
    y = x.double() @ layer.dequantized_weight().double().T
    return y if layer.bias is None else y + layer.bias.double()


def error(layer, x):
    wanted = expected(layer, x)
    return ((layer(x).double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize(
    "n, k, format, dtype, bias",
    [(1024, 512, "int4-g128", torch.bfloat16, False), (1000, 4096, "int4-g64-zint", torch.bfloat16, True),
     (257, 384, "int4-g32", torch.float16, True), (5376, 4096, "int4-g128", torch.float16, False)],
)  # fmt: skip
def test_every_m_is_right_and_repeatable(client, n, k, format, dtype, bias):
    f = format.replace("-zint", f"-{'bf16' if dtype == torch.bfloat16 else 'fp16'}-zint")
    layer = tuned(client, n, k, f, dtype, bias)
    for m in ROWS:
        x = torch.randn(m, k, device="cuda").to(dtype)
        assert torch.equal(layer(x), layer(x)), m
        assert error(layer, x) <= TOLERANCE[dtype], m


def test_slices_and_strides_are_taken_as_they_come(client):
    layer = tuned(client, 1024, 512)
    x = torch.randn(33, 1024 + 8, device="cuda").bfloat16()
    for view in (x[:, :512], x[:, 1:513], x[::2, 8:520], x[:, 3:515][1:2], x[:16, :512].t().contiguous().t()):
        wanted = layer(view.clone(memory_format=torch.contiguous_format))
        assert torch.equal(layer(view), wanted)
    assert layer(x[:0, :512]).shape == (0, 1024)
    assert layer(x[:32, :512].view(4, 8, 512)).shape == (4, 8, 1024)


def capture(layer, x):
    """(graph, output): one launch after a warm-up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        layer(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
    return graph, y


def split_layer(client, m):
    """A layer whose pick needs a workspace, so that sharing one would show."""
    for n, k in ((256, 6656), (512, 8192), (384, 16384), (256, 14336)):
        layer = tuned(client, n, k, m=(m,))
        pick = client.lookup(layer.problem, m)[0].pick
        if pick.launch.workspace_bytes(m):
            return layer
    pytest.skip("no pick of these shapes needs a workspace on this GPU")


def test_graphs_captured_on_one_stream_may_be_replayed_at_once(client):
    m = 16
    layer = split_layer(client, m)
    inputs = [torch.randn(m, layer.in_features, device="cuda").bfloat16() for _ in range(2)]
    wanted = [layer(x) for x in inputs]
    graphs = [capture(layer, x) for x in inputs]
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(500):
        for (graph, _), stream in zip(graphs, streams):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for (_, y), right in zip(graphs, wanted):
        assert torch.equal(y, right)


def test_a_destroyed_graphs_workspace_is_used_again(client):
    m = 16
    layer = split_layer(client, m)
    x = torch.randn(m, layer.in_features, device="cuda").bfloat16()
    wanted = layer(x)
    blocks = set()
    for _ in range(20):
        graph, y = capture(layer, x)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, wanted)
        blocks |= {block.address for _, held in workspaces(0)._of_graphs.values() for block in held}
        del graph, y
        gc.collect()
        torch.cuda.synchronize()
    assert len(blocks) < 20


def test_threads_launch_at_once(client):
    layer = split_layer(client, 16)
    inputs = [torch.randn(16, layer.in_features, device="cuda").bfloat16() for _ in range(8)]
    wanted = [layer(x) for x in inputs]
    torch.cuda.synchronize()

    def run(x):
        with torch.cuda.stream(torch.cuda.Stream()):
            results = [layer(x) for _ in range(100)]
        torch.cuda.synchronize()
        return results[-1]

    with futures.ThreadPoolExecutor(len(inputs)) as pool:
        assert all(torch.equal(y, right) for y, right in zip(pool.map(run, inputs), wanted))


class Block(nn.Module):
    def __init__(self, up, down):
        super().__init__()
        self.up, self.down = up, down

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(x)))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_torch_compile_gives_the_same(client, mode):
    model = Block(tuned(client, 2048, 512), tuned(client, 512, 2048)).eval()
    compiled = torch.compile(model, mode=mode, fullgraph=True)
    with torch.no_grad():
        for _ in range(4):
            for m in (1, 16, 100):
                x = torch.randn(m, 512, device="cuda").bfloat16()
                torch.testing.assert_close(compiled(x).clone(), model(x), rtol=0.02, atol=0.02)


def test_the_default_stream_and_others_do_not_disturb_each_other(client):
    m = 16
    layer = split_layer(client, m)
    inputs = [torch.randn(m, layer.in_features, device="cuda").bfloat16() for _ in range(4)]
    wanted = [layer(x) for x in inputs]
    streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(3))]
    torch.cuda.synchronize()
    results = [None] * len(inputs)
    for _ in range(200):
        for index, (x, stream) in enumerate(zip(inputs, streams)):
            with torch.cuda.stream(stream):
                results[index] = layer(x)
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(results, wanted))


# ---- the weight store, whose fingerprints are made on the GPU -------------------------------------------------------

needs_library = pytest.mark.skipif(not weight_store.available(), reason="libqgemm.so is not there: QGEMM_LIBRARY")


@needs_library
def test_a_weight_is_known_by_its_fingerprint_and_written_once(tmp_path):
    tensors = {f"w{i}": torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda") for i, size in enumerate((16, 4097, 1 << 20))}
    torch.cuda.synchronize()
    files = {}
    for skips in (True, False):
        with weight_store.WeightStore(tmp_path / "w", 0, skips) as store:
            skipped = [store.add(key, tensor) for _ in range(8) for key, tensor in tensors.items()]
            store.finish()
            assert skipped == [False] * 3 + [skips] * 21
            assert store.counts.fingerprints == (24 if skips else 0)
        files[skips] = (tmp_path / "w").read_bytes()
    assert files[True] == files[False]


@needs_library
@pytest.mark.parametrize("at", [0, 12345, -1])
def test_one_changed_bit_of_a_weight_is_refused(tmp_path, at):
    tensor = torch.randint(0, 256, (1 << 20 | 5,), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with weight_store.WeightStore(tmp_path / "w", 0) as store:
        store.add("w", tensor)
        tensor[at] ^= 1
        torch.cuda.synchronize()
        with pytest.raises(qgemm.InvalidRequest, match="weight w has changed"):
            store.add("w", tensor)


@needs_library
@pytest.mark.parametrize("kind", ["library_constant", "state"])
def test_constants_and_state_on_the_gpu_are_never_fingerprinted_and_always_written(tmp_path, kind):
    tensor = torch.zeros(4096, dtype=torch.bfloat16, device="cuda")
    torch.cuda.synchronize()
    with weight_store.WeightStore(tmp_path / "w", 0) as store:
        assert [store.add("decode/c", tensor, kind) for _ in range(3)] == [False] * 3
        counts = store.counts
    assert (counts.written, counts.skipped, counts.fingerprints) == (3, 0, 0)


@needs_library
def test_a_bundle_of_8_methods_is_the_same_with_and_without_the_store(client, tmp_path):
    model = nn.Sequential(*(nn.Linear(512, n, bias=False, dtype=torch.bfloat16, device="cuda") for n in (512, 1024)))
    qgemm.torch.quantize_(model, client)
    methods = {**{f"m{m}": m for m in (1, 2, 4, 8, 16, 32, 64)}, "any": None}
    saved = {n: qgemm.torch.save_bundle(tmp_path / n, model, methods=methods, skip_repeats=n == "a") for n in ("a", "b")}
    assert (saved["a"].weights.written, saved["a"].weights.skipped) == (4, 28)
    assert (saved["b"].weights.written, saved["b"].weights.skipped) == (32, 0)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(tmp_path / "b") for path in (tmp_path / "b").rglob("*") if path.is_file())
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)


def test_the_c_example_runs_a_layer_of_a_bundle(client, tmp_path):
    program = os.environ.get("QGEMM_RUN_LAYER", pathlib.Path(__file__).resolve().parents[2] / "bin" / "run_layer")
    if not pathlib.Path(program).exists():
        pytest.skip("QGEMM_RUN_LAYER names no run_layer")
    layer = tuned(client, 1024, 512)
    qgemm.torch.save_bundle(tmp_path / "b", nn.Sequential(layer), methods={"decode": 1, "any": None})
    for method, m in (("decode", 1), ("any", 1), ("any", 33), ("any", 700)):
        x = torch.randn(m, 512, device="cuda").bfloat16()
        (tmp_path / "x").write_bytes(x.cpu().view(torch.uint8).numpy().tobytes())
        (tmp_path / "y").write_bytes(expected(layer, x).float().cpu().numpy().tobytes())
        command = [program, tmp_path / "b", method, "0", str(m), tmp_path / "x", tmp_path / "y"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
