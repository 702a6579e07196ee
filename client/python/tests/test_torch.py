"""qgemm.torch without a GPU: the operator's CPU path, compile and export, replacing layers, and what a launch passes to
the driver, seen by a driver that records."""

import ctypes
import json
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from conftest import pick_message  # noqa: E402
from torch import nn  # noqa: E402

import qgemm  # noqa: E402
import qgemm.torch  # noqa: E402
from qgemm.bundle import Bundle  # noqa: E402
from qgemm.packing import LAYOUT_ID, quantize  # noqa: E402
from qgemm.torch.kernels import KERNELS, KernelTable, PreparedLaunch  # noqa: E402
from qgemm.torch.workspace import Workspaces  # noqa: E402

class Mlp(nn.Module):
    """Two layers and a tied one, one bias, and a layer whose K no group divides."""

    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.up, self.down = nn.Linear(128, 192, dtype=dtype), nn.Linear(192, 128, bias=False, dtype=dtype)
        self.again, self.odd = self.up, nn.Linear(20, 8, dtype=dtype)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)) + torch.relu(self.again(x)))


def seeded(make, seed=0):
    torch.manual_seed(seed)
    return make()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "format", ["int4-g32", "int4-g128", "int4-g64-fp16-zint", "int5-g32-fp16x2-zfloat", "int6-g16-fp16x2", "int8-channel"]
)
def test_a_quantized_layer_is_the_product_with_its_dequantized_weight(dtype, format):
    module = seeded(lambda: nn.Linear(256, 72, dtype=dtype))
    layer = qgemm.torch.QuantizedLinear.from_linear(module, format)
    x = torch.randn(2, 3, 256).to(dtype)
    expected = (x.double() @ layer.dequantized_weight().double().T + module.bias.double()).to(dtype)
    assert torch.equal(layer(x), expected) or torch.allclose(layer(x).float(), expected.float(), rtol=1e-2, atol=1e-3)
    assert layer(x).shape == (2, 3, 72) and layer(x).dtype == dtype
    error = (layer.dequantized_weight() - module.weight.float()).norm() / module.weight.float().norm()
    assert error < 0.12


def test_the_operator_passes_pytorchs_own_checks():
    module = seeded(lambda: nn.Linear(64, 40, dtype=torch.bfloat16))
    layer = qgemm.torch.QuantizedLinear.from_linear(module, "int4-g32")
    arguments = (torch.randn(3, 64).bfloat16(), layer.weights, layer.scales, None, None, layer.bias, None, 40, str(layer.format))
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    assert set(torch.library.opcheck(torch.ops.qgemm.linear, arguments, test_utils=checks).values()) == {"SUCCESS"}


@pytest.mark.parametrize("activation", ["none", "silu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("gated", [False, True])
def test_epilogues_are_what_their_names_say(activation, gated):
    if gated and activation == "none":
        pytest.skip("a gate needs an activation")
    function = {
        "none": lambda v: v, "silu": nn.functional.silu, "relu": nn.functional.relu,
        "gelu_tanh": lambda v: nn.functional.gelu(v, approximate="tanh"),
    }[activation]  # fmt: skip
    module = seeded(lambda: nn.Linear(64, 48, dtype=torch.bfloat16))
    layer = qgemm.torch.QuantizedLinear.from_linear(module, "int8-g32", activation=activation, gated=gated)
    x = torch.randn(5, 64).bfloat16()
    v = x.double() @ layer.dequantized_weight().double().T + module.bias.double()
    expected = function(v[:, 0::2]) * v[:, 1::2] if gated else function(v)
    residual = torch.randn(expected.shape).bfloat16()
    torch.testing.assert_close(layer(x).double(), expected, rtol=0.01, atol=0.01)
    adding = qgemm.torch.QuantizedLinear.from_linear(
        module, "int8-g32", activation=activation, gated=gated, residual=True
    )
    torch.testing.assert_close(adding(x, residual).double(), expected + residual.double(), rtol=0.01, atol=0.02)
    assert adding.problem.residual and not layer.problem.residual
    for wrong in (lambda: adding(x), lambda: layer(x, residual)):
        with pytest.raises(ValueError, match="a residual is"):
            wrong()
    assert layer.problem.y_columns == expected.shape[1] and layer.problem.activation == activation


@pytest.mark.parametrize("format", ["int4-g32", "int8-channel", "int5-g64-fp16-zint"])
def test_int8_activations_are_rounded_to_bytes_on_the_cpu_too(format):
    k = 72 if format == "int8-channel" else 64  # the last block is a part of one
    module = seeded(lambda: nn.Linear(k, 40, dtype=torch.bfloat16))
    layer = qgemm.torch.QuantizedLinear.from_linear(module, format, act_quantization="int8")
    plain = qgemm.torch.QuantizedLinear.from_linear(module, format)
    x = torch.randn(2, 5, k).bfloat16()
    meant = torch.zeros(2, 5, k, dtype=torch.float64)
    for first in range(0, k, 32):
        block = x[..., first : first + 32].double()
        scale = block.abs().amax(-1, keepdim=True) / 127
        meant[..., first : first + 32] = (block / scale).round() * scale
    expected = meant @ layer.dequantized_weight().double().T + module.bias.double()
    torch.testing.assert_close(layer(x).double(), expected, rtol=0.01, atol=0.01)
    exact = plain(x).double()
    assert 0 < (layer(x).double() - exact).norm() / exact.norm() < 0.03
    assert layer.problem.act_quantization == "int8" and plain.problem.act_quantization == "none"
    assert "act_quantization=int8" in repr(layer) and "act_quantization" not in repr(plain)
    compiled = torch.export.export(nn.Sequential(layer), (x,)).module()
    assert torch.equal(compiled(x), layer(x))


def test_quantize_gives_int8_activations_to_who_asks():
    model = seeded(Mlp)
    report = qgemm.torch.quantize_(model, format="int4-g64", act_quantization="int8")
    assert report.replaced and all(p.act_quantization == "int8" for p in qgemm.torch.problems_of(model))
    for word, message in (("int4", "use none or int8"), ("int8", "group_size 16 is not allowed with int8 activations")):
        with pytest.raises(ValueError, match=message):
            qgemm.torch.quantize_(seeded(Mlp), format="int6-g16", act_quantization=word)
    with pytest.raises(ValueError, match="group_size 16 is not allowed"):
        qgemm.torch.QuantizedLinear(64, 64, "int6-g16", act_quantization="int8")


def test_no_rows_give_no_rows():
    layer = qgemm.torch.QuantizedLinear.from_linear(nn.Linear(64, 40, dtype=torch.float16), "int4-g32")
    assert layer(torch.empty(0, 64, dtype=torch.float16)).shape == (0, 40)


def test_types_that_no_kernel_has_are_named():
    with pytest.raises(TypeError, match="the weight has the type torch.float32"):
        qgemm.torch.QuantizedLinear.from_linear(nn.Linear(64, 40), "int4-g32")
    layer = qgemm.torch.QuantizedLinear.from_linear(nn.Linear(64, 40, dtype=torch.float16), "int4-g32")
    with pytest.raises(TypeError, match="x has the type torch.float32"):
        layer(torch.zeros(1, 64))


def _changed(**changes):
    """A call of the operator, 4 rows of 64 with int4-g32 weights of 32 rows, with some arguments changed."""
    q = qgemm.torch.QuantizedLinear.from_linear(torch.nn.Linear(64, 32, dtype=torch.bfloat16), "int4-g32")
    given = {"x": torch.ones(4, 64, dtype=torch.bfloat16), "weights": q.weights, "scales": q.scales, "zeros": None, "steps": None,
             "bias": q.bias, "residual": None, "n": 32, "format": "int4-g32-bf16", "activation": "none"}  # fmt: skip
    given.update({name: change(given[name]) for name, change in changes.items()})
    return torch.ops.qgemm.linear(*given.values())


@pytest.mark.parametrize(
    "error, says, changes",
    [
        (ValueError, "weights has 10 bytes: a weight of 32x64 in the format int4-g32-bf16 needs 2048", {"weights": lambda w: w[:10]}),
        (ValueError, "scales has 256 bytes: a weight of 65x64", {"n": lambda n: 65, "weights": lambda w: w.repeat(2)}),
        (ValueError, "weights has 2048 bytes: a weight of 3200x64", {"n": lambda n: 3200}),
        (ValueError, "a weight of 0x64 is not allowed", {"n": lambda n: 0}),
        (ValueError, "zeros is missing", {"format": lambda f: f + "-zint"}),
        (ValueError, "bits 3 is not allowed", {"format": lambda f: "int3-g32"}),
        (ValueError, "is not a multiple|must be a multiple of 32", {"x": lambda x: x[:, :40]}),
        (ValueError, 'activation "tanh" is not allowed', {"activation": lambda a: "tanh"}),
        (TypeError, "weights must be contiguous bytes", {"weights": lambda w: w.view(torch.int8)}),
        (TypeError, "scales must be contiguous bytes", {"scales": lambda s: s.repeat(2)[::2]}),
        (ValueError, r"bias has the shape \(3,\): it must be \(32,\)", {"bias": lambda b: b[:3]}),
        (TypeError, "bias must be of x's type", {"bias": lambda b: b.float()}),
        (ValueError, r"residual has the shape \(1, 32\)", {"residual": lambda r: torch.ones(1, 32, dtype=torch.bfloat16)}),
        (TypeError, "residual must be of x's type", {"residual": lambda r: torch.ones(4, 32)}),
        (ValueError, "x is one number", {"x": lambda x: x[0, 0]}),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(error, says, changes):
    assert _changed().shape == (4, 32)
    with pytest.raises(error, match=says):
        _changed(**changes)


def test_x_of_another_width_is_refused_where_padding_would_hide_it():
    q = qgemm.torch.QuantizedLinear.from_linear(torch.nn.Linear(64, 32, dtype=torch.bfloat16), "int4-g32")
    with pytest.raises(ValueError, match=r"x has the shape \(4, 32\): its last dimension must be in_features, 64"):
        q(torch.ones(4, 32, dtype=torch.bfloat16))
    q.permutation = torch.arange(64)
    with pytest.raises(ValueError, match="in_features, 64"):
        q(torch.ones(4, 128, dtype=torch.bfloat16))


def test_a_layer_whose_bias_was_converted_says_so():
    q = qgemm.torch.QuantizedLinear.from_linear(torch.nn.Linear(64, 32, dtype=torch.bfloat16), "int4-g32").float()
    with pytest.raises(TypeError, match="bias must be of x's type, torch.bfloat16"):
        q(torch.ones(4, 64, dtype=torch.bfloat16))


def test_quantize_replaces_what_it_can_and_says_what_it_left():
    model = seeded(Mlp)
    report = qgemm.torch.quantize_(model, format="int4-g64")
    assert report.replaced == ["up", "down", "again"] and report.results is None
    assert report.skipped == {"odd": "k 20 is not a multiple of group_size 64"}
    assert model.up is model.again and isinstance(model.odd, nn.Linear)
    assert qgemm.torch.problems_of(model) == [
        qgemm.Problem.parse("192x128", "int4-g64-bf16", bias=True).canonical(),
        qgemm.Problem.parse("128x192", "int4-g64-bf16").canonical(),
    ]
    assert "1 left as they were" in repr(report) and "bias=True" in repr(model.up)


def test_a_weight_that_cannot_be_quantized_is_named():
    model = nn.Sequential(nn.Linear(64, 64, dtype=torch.bfloat16), nn.Linear(64, 8, dtype=torch.bfloat16))
    with torch.no_grad():
        model[1].weight[3, 40] = float("nan")
    with pytest.raises(ValueError, match="layer 1: weight of row 3, columns 32 to 63: it holds NaN"):
        qgemm.torch.quantize_(model, format="int4-g32")


def test_include_and_exclude_choose_layers():
    assert qgemm.torch.quantize_(seeded(Mlp), format="int4-g64", include="down").replaced == ["down"]
    report = qgemm.torch.quantize_(seeded(Mlp), format="int4-g64", exclude=lambda name, module: module.bias is None)
    assert "down" in report.skipped and "up" in report.replaced


def test_a_state_dict_restores_a_quantized_model():
    model, other = seeded(Mlp), seeded(Mlp, 1)
    for each in (model, other):
        qgemm.torch.quantize_(each, format="int5-g64-fp16x2-zfloat")
    x = torch.randn(4, 128).bfloat16()
    assert not torch.equal(model(x), other(x))
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(x), other(x))


class Checkpoint:
    """Stands in for qgemm.importers.Checkpoint: the layers that `weights` gives, in NumPy, with columns permuted."""

    class Layer:
        def __init__(self, weight, permutation):
            self.n, self.k = weight.shape
            self.permutation = permutation
            self._weight = weight[:, permutation]

        def canonical(self):
            return quantize(self._weight, "int5-g32-fp16-zint")

    def __init__(self, weights):
        self._weights = weights

    def layers(self):
        return list(self._weights)

    def read(self, name):
        weight = self._weights[name]
        return Checkpoint.Layer(weight, np.random.default_rng(3).permutation(weight.shape[1]).astype(np.int32))


def test_a_checkpoints_layers_take_their_place_with_their_column_order():
    model = seeded(Mlp)
    weights = {name: getattr(model, name).weight.detach().float().numpy() for name in ("up", "down")}
    x = torch.randn(6, 128).bfloat16()
    bias = model.up.bias.clone()
    report = qgemm.torch.load_checkpoint_(model, Checkpoint(weights))
    assert report.replaced == ["up", "down"] and torch.equal(model.up.bias, bias)
    for name, weight in weights.items():
        found = getattr(model, name).dequantized_weight().numpy()
        assert np.linalg.norm(found - weight) < 0.05 * np.linalg.norm(weight)
    expected = x.double() @ model.up.dequantized_weight().double().T + bias.double()
    torch.testing.assert_close(model.up(x).double(), expected, rtol=0.01, atol=0.01)
    with pytest.raises(ValueError, match="the model has no nn.Linear of this name"):
        qgemm.torch.load_checkpoint_(seeded(Mlp), Checkpoint({"left": weights["up"]}))
    with pytest.raises(ValueError, match="up is 128x192: the model's is 192x128"):
        qgemm.torch.load_checkpoint_(seeded(Mlp), Checkpoint({"up": weights["down"]}))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_compile_keeps_the_operator_whole(backend):
    model = seeded(Mlp)
    qgemm.torch.quantize_(model, format="int4-g64")
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for rows in (2, 5):
        x = torch.randn(rows, 128).bfloat16()
        torch.testing.assert_close(compiled(x), model(x), rtol=0.02, atol=0.02)


def test_an_exported_program_runs_in_another_process(tmp_path):
    model = seeded(Mlp)
    del model.odd
    qgemm.torch.quantize_(model, format="int4-g64")
    x = torch.randn(6, 128).bfloat16()
    shapes = {"x": {0: torch.export.Dim("rows", min=1, max=4096)}}
    program = torch.export.export(model, (torch.randn(3, 128).bfloat16(),), dynamic_shapes=shapes)
    operators = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert operators.count(torch.ops.qgemm.linear.default) == 3
    torch.export.save(program, tmp_path / "model.pt2")
    torch.save({"x": x, "y": model(x)}, tmp_path / "case.pt")
    code = """
import sys, torch, qgemm.torch
case = torch.load(sys.argv[1] + "/case.pt")
y = torch.export.load(sys.argv[1] + "/model.pt2").module()(case["x"])
assert torch.equal(y, case["y"]), (y - case["y"]).abs().max()
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_quantize_tunes_through_a_daemon_and_a_bundle_keeps_it(daemon, tmp_path):
    KERNELS.clear()
    model = seeded(Mlp)
    with qgemm.Client(daemon) as client:
        report = qgemm.torch.quantize_(model, client, format="int4-g64", m=[1, 64])
    assert len(report.results.picks) == 4
    problem = model.up.problem
    assert KERNELS.pick(problem, 1).m_bucket == 1 and KERNELS.pick(problem, 3).m_bucket == 64
    with pytest.raises(LookupError, match="tuned for M up to 64, not for M = 65"):
        KERNELS.pick(problem, 65)
    for name in ("a", "b", "c.tar"):
        qgemm.torch.save_bundle(tmp_path / name, model)
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)
    for name in ("a", "c.tar"):
        other = KernelTable()
        other.load(tmp_path / name)
        assert other.problems() == KERNELS.problems()
        assert other.pick(problem, 9).launch == KERNELS.pick(problem, 9).launch
        opened = Bundle.open(tmp_path / name).verify()
        # Not every bucket is there: a method per bucket.
        assert opened.methods == ["main-m1", "main-m64"] and opened.method("main-m64").static_m == 64
        layers = {layer.name: layer for layer in opened.method("main-m64").layers}
        assert list(layers) == ["up", "down"] and layers["up"].pick(3).m_bucket == 64
        assert layers["up"].pick(65) is None
        x = torch.randn(5, 128).bfloat16()
        restored = qgemm.torch.QuantizedLinear.from_bundle(opened, layers["up"])
        assert torch.equal(restored(x), model.up(x))


def test_layers_with_every_bucket_are_a_method_of_any_m(daemon, tmp_path):
    KERNELS.clear()
    model = nn.Sequential(*(nn.Linear(64, n, bias=False, dtype=torch.bfloat16) for n in (64, 128)))
    qgemm.torch.quantize_(model, format="int4-g64")
    with qgemm.Client(daemon) as client:
        qgemm.torch.tune(model[0], client)
        qgemm.torch.tune(model[1], client, m=2)
    qgemm.torch.save_bundle(tmp_path / "a", model, weights=False, method="step")
    opened = Bundle.open(tmp_path / "a").verify()
    methods = {name: opened.method(name) for name in opened.methods}
    assert {name: (m.static_m, [layer.name for layer in m.layers]) for name, m in methods.items()} == {
        "step": (None, ["0"]), "step-m2": (2, ["1"]),
    }  # fmt: skip
    assert [pick.m_bucket for pick in methods["step"].layers[0].picks] == list(qgemm.LADDER)
    assert opened.weights() == {} and methods["step"].layers[0].weight_key == ""


def test_methods_have_the_same_weights_once_with_and_without_skipping(daemon, tmp_path):
    KERNELS.clear()
    model = nn.Sequential(*(nn.Linear(64, n, bias=n == 64, dtype=torch.bfloat16) for n in (64, 128)))
    qgemm.torch.quantize_(model, format="int4-g64")
    with qgemm.Client(daemon) as client:
        qgemm.torch.tune(model, client)
    methods = {**{f"m{m}": m for m in (1, 2, 4, 8, 16, 32, 64)}, "any": None}
    for name, skips in (("a", True), ("b", False), ("c.tar", True)):
        saved = qgemm.torch.save_bundle(tmp_path / name, model, methods=methods, skip_repeats=skips)
        assert saved.methods == list(methods)
        if saved.weights is not None:  # on the CPU nothing is fingerprinted, and all is written for each method
            assert (saved.weights.written, saved.weights.fingerprints) == (8 * 5, 0)
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)
    assert not [path for path in tmp_path.iterdir() if path.name not in ("a", "b", "c.tar")]
    for name in ("a", "c.tar"):
        opened = Bundle.open(tmp_path / name).verify()
        assert sorted(opened.methods) == sorted(methods)
        # Every kernel says what it writes: Y and the workspace alone.
        for layer in opened.method("any").layers:
            for pick in layer.picks:
                arguments = pick.launch.arguments
                written = {arguments[row["index"]].name for row in pick.kernel.access["parameters"] if row["written"]}
                assert pick.kernel.access["failure"] is None and "y" in written <= {"y", "workspace"}
        with qgemm.Client(daemon) as client:
            for kernel in opened.manifest["kernels"]:
                assert kernel["programmatic"] == ("griddepcontrol.wait" in client.get_ptx(kernel["sha256"]))
        static = opened.method("m16")
        assert static.static_m == 16 and [[pick.m_bucket for pick in layer.picks] for layer in static.layers] == [[16]] * 2
        assert [pick.m_bucket for pick in opened.method("any").layers[1].picks] == list(qgemm.LADDER)
        restored = qgemm.torch.QuantizedLinear.from_bundle(opened, static.layers[0])
        assert torch.equal(restored.weights, model[0].weights) and torch.equal(restored.bias, model[0].bias)
    # Its picks are a lock file: the same export without a daemon, byte for byte.
    KERNELS.clear()
    qgemm.torch.load_kernels(tmp_path / "c.tar")
    qgemm.torch.save_bundle(tmp_path / "again.tar", model, methods=methods)
    assert (tmp_path / "again.tar").read_bytes() == (tmp_path / "c.tar").read_bytes()
    with pytest.raises(LookupError, match="method decode: .* is not tuned for M <= 1"):
        KERNELS.clear()
        with qgemm.Client(daemon) as client:
            qgemm.torch.tune(model, client, m=[16])
        qgemm.torch.save_bundle(tmp_path / "d", model, methods={"decode": 1})


def test_qgemmctl_reads_a_bundle_written_here(daemon, tmp_path):
    qgemmctl = os.environ.get("QGEMMCTL")
    if not qgemmctl or " bundle " not in subprocess.run([qgemmctl, "--help"], capture_output=True, text=True).stdout:
        pytest.skip("QGEMMCTL names no qgemmctl that has the command bundle")
    KERNELS.clear()
    model = seeded(Mlp)
    with qgemm.Client(daemon) as client:
        qgemm.torch.quantize_(model, client, format="int4-g64", m=[1, 16])
    for name in ("a", "a.tar"):
        qgemm.torch.save_bundle(tmp_path / name, model)
        command = [qgemmctl, "--server", daemon, "bundle", "verify", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_damaged_bundle_is_told(daemon, tmp_path):
    KERNELS.clear()
    model = seeded(Mlp)
    with qgemm.Client(daemon) as client:
        qgemm.torch.quantize_(model, client, format="int4-g64", m=[1])
    qgemm.torch.save_bundle(tmp_path / "a", model)
    kernels = [f"kernels/{path.name}" for path in (tmp_path / "a" / "kernels").iterdir()]
    for name in ("methods/main-m1.json", "weights.safetensors", *kernels):
        path = tmp_path / "a" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(qgemm.DataLoss, match=f"{name} has other bytes"):
            Bundle.open(tmp_path / "a").verify()
        path.write_bytes(whole)
    manifest = tmp_path / "a" / "manifest.json"
    whole = manifest.read_text()
    document = json.loads(whole)
    document["kernels"][0]["access"]["parameters"][0]["written"] = True
    manifest.write_text(json.dumps(document))
    with pytest.raises(qgemm.DataLoss, match="writes argument"):
        Bundle.open(tmp_path / "a").verify()
    manifest.write_text(whole.replace('"abi_version": 2', '"abi_version": 7'))
    with pytest.raises(qgemm.FailedPrecondition, match="abi_version is 7"):
        Bundle.open(tmp_path / "a")
    with pytest.raises(qgemm.NotFound, match="there is no bundle"):
        Bundle.open(tmp_path / "nothing")


def test_an_untuned_problem_says_what_to_do():
    with pytest.raises(LookupError, match="is not tuned: qgemm.torch.tune"):
        KernelTable().pick(qgemm.Problem.parse("64x64"), 1)


def test_a_kernel_that_writes_its_input_is_refused():
    message = pick_message(qgemm.Problem.parse("64x64"), 1)
    message.launch.layout_id = LAYOUT_ID
    row = message.kernel.access.parameters.add(index=0, read=True, written=False)
    pick = qgemm.Pick.from_proto(message)
    KernelTable().add([pick], {pick.kernel_sha256: b""})
    row.written = True
    for failure, refused in (("", True), ("calls a function", False)):  # then nobody knows
        message.kernel.access.failure = failure
        pick, table = qgemm.Pick.from_proto(message), KernelTable()
        if refused:
            with pytest.raises(qgemm.DataLoss, match="writes argument 'x', which its launch does not say"):
                table.add([pick], {pick.kernel_sha256: b""})
        else:
            table.add([pick], {pick.kernel_sha256: b""})


def test_picks_of_another_layout_are_refused():
    pick = qgemm.Pick.from_proto(pick_message(qgemm.Problem.parse("64x64"), 1))
    with pytest.raises(ValueError, match="this client knows"):
        KernelTable().add([pick], {pick.kernel_sha256: b""})


# ---- launches, as the driver would see them -------------------------------------------------------------------------


class RecordingDriver:
    """Stands in for qgemm.torch.driver.Driver."""

    ELEMENTS = {"bf16": (9, 2), "fp16": (6, 2), "u32": (2, 4)}

    def __init__(self):
        self.launches, self.maps, self.zeroed, self.allocated = [], [], [], []
        self.current = (0, None)
        self.at_destruction = []
        self.memory_left = 1 << 40

    def launch(self, config, function, params):
        words = [ctypes.cast(p, ctypes.POINTER(ctypes.c_uint64)).contents.value for p in params]
        cluster = tuple(config.attributes[0].value[:3]) if config.attribute_count else None
        shape = (tuple(config.grid), tuple(config.block), config.dynamic_smem_bytes)
        self.launches.append((*shape, config.stream, cluster, words))

    def encode_tensor_map(self, out, name, element, columns, rows, pitch, box_columns, box_rows, swizzle, address):
        assert ctypes.addressof(out) % 64 == 0
        self.maps.append((name, columns, rows, pitch, address))

    def allocate(self, size):
        if size > self.memory_left:
            return None
        self.memory_left -= size
        self.allocated.append(size)
        return 1 << 32 | len(self.allocated) << 28

    def zero(self, address, size, stream):
        self.zeroed.append((address, size, stream))

    def capture(self, stream):
        return self.current

    def on_graph_destroyed(self, graph, function, argument):
        self.at_destruction.append((function, argument))

    def destroy_graph(self, index):
        """What CUDA does when the graph is gone: the C function is called with its argument."""
        function, argument = self.at_destruction[index]
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(function.value)(argument)


def spec(cluster_z=1):
    message = pick_message(qgemm.Problem.parse("640x512"), 64)
    launch = message.launch
    launch.block_threads, launch.dynamic_smem_bytes, launch.cluster_z = 256, 100 << 10, cluster_z
    del launch.arguments[:]
    tensor_map = launch.arguments.add(name="x_map").tensor_map
    tensor_map.role, tensor_map.element, tensor_map.columns = 1, 1, 512
    tensor_map.box_columns, tensor_map.box_rows = 64, 16
    launch.arguments.add(name="weights").pointer.role = 2
    for name, role, alignment in (("x", 1, 16), ("zeros", 4, 16), ("y", 6, 16), ("workspace", 7, 256)):
        pointer = launch.arguments.add(name=name).pointer
        pointer.role, pointer.alignment = role, alignment
    launch.arguments.add(name="m").i32.symbol = 1
    launch.arguments.add(name="ldx").i64.symbol = 2
    launch.arguments.add(name="ldy").i64.symbol = 3
    launch.arguments.add(name="ldr").i64.symbol = 4
    launch.arguments.add(name="units").i32.constant = 8
    return qgemm.Pick.from_proto(message).launch


def test_a_launch_passes_what_its_spec_says():
    cuda = RecordingDriver()
    launch = PreparedLaunch(cuda, None, spec(), {"weights": 0x1000, "scales": 0x2000, "zeros": 0, "steps": 0, "bias": 0})
    launch.run(0x3000, 0x4000, 0x5000, 33, 520, 640, 7)
    grid, block, smem, stream, cluster, words = cuda.launches[0]
    assert (grid, block, smem, stream, cluster) == ((3, 10, 4), (256, 1, 1), 100 << 10, 7, None)
    assert words[1:6] == [0x1000, 0x3000, 0, 0x4000, 0x5000]
    assert [word & 0xFFFFFFFF for word in words[6:]] == [33, 520, 640, 0, 8]
    assert cuda.maps == [("x_map", 512, 33, 1040, 0x3000)]


def test_a_tensor_map_is_made_again_only_when_x_moves():
    cuda = RecordingDriver()
    launch = PreparedLaunch(cuda, None, spec(), {"weights": 0x1000, "scales": 0, "zeros": 0, "steps": 0, "bias": 0})
    for x, m in ((0x3000, 33), (0x3000, 33), (0x3000, 34), (0x6000, 34)):
        launch.run(x, 0x4000, 0x5000, m, 512, 640, 0)
    assert [(rows, address) for _, _, rows, _, address in cuda.maps] == [(33, 0x3000), (34, 0x3000), (34, 0x6000)]


def test_clusters_are_a_launch_attribute():
    cuda = RecordingDriver()
    launch = PreparedLaunch(cuda, None, spec(cluster_z=4), {"weights": 0x1000, "scales": 0, "zeros": 0, "steps": 0, "bias": 0})
    launch.run(0x3000, 0x4000, 0x5000, 1, 512, 640, 0)
    assert cuda.launches[0][4] == (1, 1, 4)


def test_a_pointer_that_is_not_aligned_is_named():
    with pytest.raises(ValueError, match="argument zeros at 0x8 is not aligned to 16 bytes"):
        PreparedLaunch(RecordingDriver(), None, spec(), {"weights": 0x1000, "scales": 0, "zeros": 8, "steps": 0, "bias": 0})
    launch = PreparedLaunch(RecordingDriver(), None, spec(), {"weights": 0x1000, "scales": 0, "zeros": 0, "steps": 0, "bias": 0})
    with pytest.raises(ValueError, match="argument y at 0x4008"):
        launch.run(0x3000, 0x4008, 0x5000, 1, 512, 640, 0)


def test_launches_on_one_stream_share_a_workspace_and_its_border():
    cuda = RecordingDriver()
    workspaces = Workspaces(cuda)
    few, many = workspaces.address(100, 4096, 1, False), workspaces.address(1000, 4096, 1, False)
    # 100 and 1000 bytes of tickets, rounded up to 256 and 1024: the partials start at the same byte.
    assert few + 256 == many + 1024 and few % 256 == 0
    assert len(cuda.allocated) == 1 and cuda.zeroed == [(cuda.zeroed[0][0], 64 << 10, 1)]
    assert workspaces.address(100, 4096, 2, False) != few and len(cuda.allocated) == 2


def test_a_workspace_that_is_too_small_is_replaced_by_a_zeroed_one():
    cuda = RecordingDriver()
    workspaces = Workspaces(cuda)
    first = workspaces.address(256, 4096, 1, False)
    second = workspaces.address(256, 3 << 20, 1, False)
    assert first != second and len(cuda.zeroed) == 2 and cuda.allocated[1] >= (64 << 10) + (3 << 20)
    assert workspaces.address(256, 4096, 1, False) == second


def test_every_captured_graph_has_a_workspace_that_comes_back_when_it_is_destroyed():
    cuda = RecordingDriver()
    workspaces = Workspaces(cuda)
    eager = workspaces.address(256, 4096, 1, False)
    cuda.current = (11, "graph 11")
    first = workspaces.address(256, 4096, 1, True)
    assert first == workspaces.address(256, 4096, 1, True) != eager
    assert len(cuda.at_destruction) == 1
    cuda.current = (12, "graph 12")
    second = workspaces.address(256, 4096, 1, True)
    assert second != first
    cuda.destroy_graph(0)
    cuda.current = (13, "graph 13")
    assert workspaces.address(256, 4096, 1, True) == first
    assert len(cuda.allocated) == 3 and len(cuda.zeroed) == 4  # zeroed again for graph 13
    cuda.current = (0, None)
    assert workspaces.address(256, 4096, 1, False) == eager


def test_memory_that_is_not_there_is_asked_for_once_more():
    cuda = RecordingDriver()
    cuda.memory_left = 0

    def make_room():
        cuda.memory_left = 4 << 20

    assert Workspaces(cuda, make_room).address(256, 4096, 1, False)
    with pytest.raises(MemoryError, match="no 64 MiB left"):
        Workspaces(cuda).address(256, 64 << 20, 1, False)
