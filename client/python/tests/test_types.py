"""Words, tables, progress and plots: no daemon."""

import io
import subprocess
import sys

import pytest
from conftest import pick_message

import qgemm
from qgemm.bundle_json import problem_from_json, problem_to_json
from qgemm.json_fields import Fields
from qgemm.progress import make_progress
from qgemm.types import TuneProgress, TuneResult


@pytest.mark.parametrize(
    "text", ["int4-g128", "int4-g64-bf16", "int4-g32-fp16-zint", "int8-channel", "int6-g16-fp16x2", "int5-g32-fp16x2-zfloat"]
)
def test_a_format_reads_its_own_name(text):
    assert str(qgemm.WeightFormat.parse(text)) == text


@pytest.mark.parametrize("text", ["int4", "g128", "int4-g128-fp8", "int4-g128-bf16-zint-x"])
def test_a_format_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match=f'format "{text}" is not allowed'):
        qgemm.WeightFormat.parse(text)


def test_a_problem_survives_the_api():
    problem = qgemm.Problem.parse("5376x4096", "int4-g32-fp16-zint", act="fp16", bias=True)
    assert qgemm.Problem.from_proto(problem.to_proto()) == problem.canonical()
    assert str(problem) == "5376x4096 int4-g32-fp16-zint act fp16 bias"
    gated = qgemm.Problem.parse("128x64", "int6-g16-fp16x2", out="fp32", activation="silu", gated=True, residual=True)
    assert qgemm.Problem.from_proto(gated.to_proto()) == gated and gated.y_columns == 64
    assert str(gated) == "128x64 int6-g16-fp16x2 act bf16 out fp32 silu gated residual"


def test_int8_activations_are_a_problem_of_their_own():
    plain = qgemm.Problem.parse("5376x4096")
    int8 = qgemm.Problem.parse("5376x4096", act_quantization="int8")
    assert plain.act_quantization == "none" and plain.canonical() != int8.canonical()
    assert qgemm.Problem.from_proto(int8.to_proto()) == int8.canonical()
    assert qgemm.Problem.from_proto(plain.to_proto()) == plain.canonical()
    assert str(int8) == "5376x4096 int4-g128-bf16 act bf16 as int8"
    assert problem_from_json(Fields(problem_to_json(int8), "problem")) == int8.canonical()
    before = problem_to_json(plain)
    del before["act_quantization"]  # as it was written once
    assert problem_from_json(Fields(before, "problem")) == plain.canonical()
    with pytest.raises(ValueError, match='act_quantization "fp8" is not allowed: use int8, none'):
        qgemm.Problem(1, 32, act_quantization="fp8").to_proto()


def test_results_say_what_activations_become():
    problem = qgemm.Problem.parse("256x512", act_quantization="int8").canonical()
    made = qgemm.TuneResults([TuneResult(problem, 1, qgemm.Pick.from_proto(pick_message(problem, 1)))])
    assert "int4-g128-bf16 bf16 as int8" in repr(made) and "as int8" not in repr(results())
    assert made.records()[0]["act_quantization"] == "int8" and results().records()[0]["act_quantization"] == "none"
    assert made.pick(problem, 1).problem == problem
    with pytest.raises(KeyError):
        made.pick("256x512", 1)


def test_words_that_the_api_does_not_know_are_refused():
    with pytest.raises(ValueError, match='act "fp8" is not allowed: use bf16, fp16, fp32'):
        qgemm.Problem(1, 32, act="fp8").to_proto()
    with pytest.raises(ValueError, match='zero "half" is not allowed: use none, int, float'):
        qgemm.WeightFormat(zero="half").to_proto()


@pytest.mark.parametrize("m, bucket", [(1, 1), (3, 4), (17, 24), (65, 96), (4096, 4096), (100000, 4096)])
def test_m_is_rounded_up_to_its_bucket(m, bucket):
    assert qgemm.bucket_for(m) == bucket


def results():
    problem = qgemm.Problem.parse("256x512").canonical()
    picks = [TuneResult(problem, m, qgemm.Pick.from_proto(pick_message(problem, m))) for m in (1, 4096)]
    failed = TuneResult(problem, 16, None, error="<no> kernel")
    return qgemm.TuneResults([*picks, failed], qgemm.TuneSummary(compiles=3, wall_s=1.25))


def test_results_print_as_an_aligned_table():
    lines = repr(results()).splitlines()
    assert lines[0].index("M <=") + 4 == lines[1].index(" 1 ") + 2
    assert "4096+" in lines[2] and "<no> kernel" in lines[3]
    assert lines[-1] == "2 of 3 picks: 3 kernels compiled, 0 candidates timed, 0 from the cache, 1.25 s"


def test_results_show_themselves_as_html_in_notebooks():
    html = results()._repr_html_()
    assert html.count("<tr>") == 4 and "&lt;no&gt; kernel" in html and "<no>" not in html


def test_records_are_flat():
    first, _, failed = results().records()
    assert first["time_us"] == 9.5 and first["kernel_sha256"] == "ab" * 32
    assert failed["time_us"] is None and failed["error"] == "<no> kernel"


def test_results_plot(monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    axes = results().plot()
    assert [line.get_label() for line in axes.get_lines()] == ["256x512 int4-g128-bf16"]
    assert list(axes.get_lines()[0].get_ydata()) == [9.5, 9.5]


def test_progress_without_tqdm_is_a_line_now_and_then(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    now, stream = [0.0], io.StringIO()
    shown = make_progress(True, stream, clock=lambda: now[0])
    for step in range(5):
        now[0] = step
        shown.update(TuneProgress(4, step, 8, 2, 2, 1, float(step)))
    shown.close()
    assert stream.getvalue().splitlines() == [
        "tune: 2/4 kernels compiled, 2/8 candidates done, 1/2 picks, 2.0 s",
        "tune: 4/4 kernels compiled, 2/8 candidates done, 1/2 picks, 4.0 s",
    ]


def test_progress_with_tqdm_is_a_bar():
    pytest.importorskip("tqdm")
    stream = io.StringIO()
    shown = make_progress(True, stream)
    shown.update(TuneProgress(4, 3, 8, 2, 2, 1, 1.0))
    shown.close()
    assert "5/12" in stream.getvalue() and "1/2 picks" in stream.getvalue()


def test_progress_is_silent_where_nobody_looks():
    stream = io.StringIO()
    make_progress(None, stream).update(TuneProgress())
    assert stream.getvalue() == ""


def test_the_modules_come_with_the_package():
    program = (
        "import qgemm, sys\n"
        "assert not {'qgemm.packing', 'qgemm.torch', 'torch'} & set(sys.modules)\n"
        "print(qgemm.packing.LAYOUT_ID, qgemm.importers.open_checkpoint, qgemm.bundle.Bundle, qgemm.weight_store.WeightStore)\n"
        "qgemm.nonsense"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "open_checkpoint" in done.stdout, done.stderr
    assert "AttributeError: module 'qgemm' has no attribute 'nonsense'" in done.stderr
