"""The clients against a real qgemmd without a GPU: its picks are predictions, its kernels are real."""

import asyncio
import hashlib
import os
import re
import shutil
import subprocess

import numpy as np
import pytest

import qgemm
from qgemm import canonical_file, packing
from qgemm.bundle import Bundle


def test_tune_lookup_and_fetch(daemon):
    with qgemm.Client(daemon) as client:
        device = client.describe()
        assert not device.has_gpu and device.target == "h200" and "h200" in device.known_targets
        progress = []
        results = client.tune("256x512", m=[1, 64], progress=progress.append).raise_for_errors()
        assert [result.m_bucket for result in results] == [1, 64] and progress
        pick = results.pick("256x512", 50)
        assert pick.source == "MODEL" and pick.time_us is None and pick.predicted_us > 0
        again = client.lookup("256x512", m=50)[0].pick
        assert again == pick
        kernel = client.get_kernel(pick)
        assert kernel.cubin[:4] == b"\x7fELF" and kernel.launch == pick.launch
        assert ".entry" in client.get_ptx(pick)
        assert client.cache_stats().picks >= 2
        assert client.tune("256x512", m=[1, 64]).summary.cache_hits == 2


def test_int8_activations_are_tuned_and_looked_up_apart(daemon):
    plain = qgemm.Problem.parse("384x512")
    int8 = qgemm.Problem.parse("384x512", act_quantization="int8")

    async def again():
        async with qgemm.AsyncClient(daemon) as client:
            tuned, found = await client.tune([plain, int8], m=1), await client.lookup([plain, int8], m=1)
            return tuned.picks, found.picks

    with qgemm.Client(daemon) as client:
        first = client.tune(plain, m=1, effort="model-only").raise_for_errors().picks[0]
        assert client.lookup(int8, m=1).picks == []
        second = client.tune(int8, m=1, effort="model-only").raise_for_errors().picks[0]
        assert second.problem == int8.canonical() and first.problem == plain.canonical()
        assert second.kernel_sha256 != first.kernel_sha256
        assert client.lookup([int8, plain], m=1).picks == [second, first]
        with pytest.raises(qgemm.InvalidRequest, match="group_size 16 is not allowed with int8 activations"):
            client.tune(qgemm.Problem.parse("384x512", "int6-g16", act_quantization="int8"), m=1)
    for picks in asyncio.run(again()):
        assert [pick.problem for pick in picks] == [plain.canonical(), int8.canonical()]


def test_the_daemons_sentences_arrive(daemon):
    with qgemm.Client(daemon) as client:
        with pytest.raises(qgemm.InvalidRequest, match="k 500"):
            client.tune("256x500", m=1)
        with pytest.raises(qgemm.NotFound):
            client.get_kernel("ab" * 32)
        assert client.lookup("1024x1024", m=1)[0].error


def test_asyncio_calls_run_side_by_side(daemon):
    async def run():
        async with qgemm.AsyncClient(daemon) as client:
            return await asyncio.gather(client.tune("320x512", m=1), client.describe(), client.lookup("320x512", m=4))

    results, device, _ = asyncio.run(run())
    assert results.picks[0].launch.entry and device.compile_workers >= 1


def test_tls_and_a_token(tmp_path):
    qgemmd, openssl = os.environ.get("QGEMMD"), shutil.which("openssl")
    if not qgemmd or not openssl:
        pytest.skip("QGEMMD names no qgemmd, or there is no openssl")
    cert, key, tokens = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "tokens"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
         "/CN=qgemmd", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    tokens.write_text(f"alice:{hashlib.sha256(b'secret').hexdigest()}\n")
    key.chmod(0o600)
    tokens.chmod(0o600)
    command = [qgemmd, "--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data", "--device", "none", "--tls-cert", cert,
               "--tls-key", key, "--tokens-file", tokens]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            ready = next(line for line in process.stderr if "ready: listening on" in line)
            address = re.search(r"127\.0\.0\.1:\d+", ready).group()
            once = {"retry": qgemm.Retry(attempts=1)}
            with qgemm.Client(address, tls_ca=cert, token="secret", **once) as client:
                assert client.describe().target == "h200"
            with qgemm.Client(address, tls_ca=cert, token="wrong", **once) as client:
                with pytest.raises(qgemm.Unauthenticated, match="mistyped or has been withdrawn"):
                    client.describe()
            with qgemm.Client(address, token="secret", **once) as client:
                with pytest.raises(qgemm.Unavailable, match="tls_ca"):
                    client.describe()
        finally:
            process.terminate()


def test_a_file_of_canonical_weights_becomes_a_bundle(daemon, tmp_path):
    qgemmctl = os.environ.get("QGEMMCTL")
    if not qgemmctl:
        pytest.skip("QGEMMCTL does not name the program")
    random = np.random.default_rng(1)
    formats = ("int4-g128", "int6-g64-fp16-zint", "int8-channel", "int4-g32-fp16x2-zfloat", "int5-g32-bf16-zfloat")
    layers = {name: packing.quantize(random.normal(size=(64, 256)).astype(np.float32), name) for name in formats}
    bias = random.normal(size=64).astype(np.float32)
    canonical_file.save(tmp_path / "weights", [(name, c, *([bias] * (name == "int8-channel"))) for name, c in layers.items()])
    command = [qgemmctl, "--server", daemon, "bundle", "create", "-o", str(tmp_path / "b"), "--weights", str(tmp_path / "weights")]
    done = subprocess.run([*command, "--method", "decode=1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    bundle = Bundle.open(tmp_path / "b").verify()
    made = {layer.name: (layer.problem, bundle.planes(layer)) for layer in bundle.method("decode").layers}
    assert set(made) == set(formats)
    for name, canonical in layers.items():
        problem, planes = made[name]
        assert problem.format == canonical.format
        packed = packing.pack(canonical)
        wanted = {p: getattr(packed, p) for p in ("weights", "scales", "zeros", "steps") if getattr(packed, p) is not None}
        given = planes.pop("bias", None)
        assert (given is not None) == (name == "int8-channel") == problem.bias
        assert set(planes) == set(wanted)
        for plane, data in wanted.items():
            np.testing.assert_array_equal(planes[plane], data, err_msg=f"{name}.{plane}")
        if given is not None:
            values = (given.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            np.testing.assert_allclose(values, bias, rtol=2**-8)


def test_layers_that_do_not_fit_are_named(tmp_path):
    weight = packing.quantize(np.ones((16, 64), np.float32), "int4-g32")
    for layers, says in (
        ([("a", weight), ("a", weight)], "layer a is there twice"),
        ([("a", weight, np.ones(17))], "layer a: the bias has the shape"),
        ([("a", packing.Canonical(weight.format, weight.codes, weight.scales[:3]))], "layer a: scales has the shape"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            canonical_file.save(tmp_path / "weights", layers)
        assert list(tmp_path.iterdir()) == []
