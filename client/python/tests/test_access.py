"""qgemm.access: reports by PTX, once per signature."""

import dataclasses
import threading

import pytest

import qgemm
from qgemm import access
from qgemm.access import AccessMemo, Call, ParameterAccess, opaque, pointer, scalar, symbolic

pytestmark = pytest.mark.skipif(not access.available(), reason="libqgemm.so is not there: QGEMM_LIBRARY")

# Reads its first parameter, writes its second; the third is a number.
PTX = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 p0, .param .u64 p1, .param .u32 p2)
{
 .reg .b32 %r<2>;
 .reg .b64 %rd<3>;
 ld.param.u64 %rd1, [p0];
 ld.param.u64 %rd2, [p1];
 ld.global.b32 %r1, [%rd1];
 st.global.v2.b32 [%rd2], {%r1, %r1};
 ret;
}
"""
EXPECTED = (ParameterAccess(0, True, False, 4), ParameterAccess(1, False, True, 8))


def call(*arguments, kernel="a", ptx=lambda: PTX):
    return Call(kernel, "kernel", arguments or (pointer(0, 4096), pointer(0, 8192), scalar(1, 7)), ptx)


def test_a_signature_is_analysed_once():
    memo, asked = AccessMemo(), []

    def ptx():
        asked.append(1)
        return PTX

    for address in (4096, 4112, 1 << 40):
        made = call(pointer(0, address), pointer(0, 8192), scalar(1, 7), ptx=ptx)
        assert memo.report(made).parameters == EXPECTED and memo.report(made).failure is None
    assert len(asked) == 1
    assert memo.counts == access.AccessCounts(analyses=1, failures=0, repeats=5)


def test_signatures_differ_where_an_analysis_may():
    calls = [call(), call(kernel="b"), call(pointer(0, 4104), pointer(0, 8192), scalar(1, 7)),
             call(pointer(2, 4096), pointer(0, 8192), scalar(1, 7)), call(pointer(0, 4096), pointer(0, 8192), scalar(1, -7)),
             call(pointer(0, 4096), pointer(0, 8192), symbolic(1))]  # fmt: skip
    memo = AccessMemo()
    assert all(memo.report(each).parameters == EXPECTED for each in calls)
    assert memo.counts.analyses == len({each.signature for each in calls}) == len(calls)


def test_a_call_without_a_key_is_analysed_every_time():
    memo, made = AccessMemo(), call(pointer(0, 4096), pointer(0, 8192), opaque())
    assert made.signature is None
    assert [memo.report(made).parameters for _ in range(3)] == [EXPECTED] * 3
    assert memo.counts.analyses == 3


@pytest.mark.parametrize("broken", [None, lambda: "no PTX", lambda: PTX.replace("p1]", "p9]")])
def test_a_failed_analysis_writes_everything_and_is_not_kept(broken):
    memo = AccessMemo()
    for failures in (1, 2):
        report = memo.report(call(ptx=broken))
        assert report.failure and [row.written for row in report.parameters] == [True, True]
        assert memo.counts.failures == failures
    assert memo.report(call()).parameters == EXPECTED


def test_what_its_ptx_raises_is_raised():
    def gone():
        raise qgemm.NotFound("no such kernel")

    memo = AccessMemo()
    with pytest.raises(qgemm.NotFound, match="no such kernel"):
        memo.report(call(ptx=gone))
    assert memo.report(call()).parameters == EXPECTED


def test_threads_may_analyse_one_call_at_once():
    body = " add.s64 %rd2, %rd2, 1;\n" * 20000
    ptx = PTX.replace(" st.global", body + " st.global")
    memo, made, reports = AccessMemo(), call(pointer(0, 4096), pointer(0, 8192), opaque(), ptx=lambda: ptx), []

    def analyse():
        reports.extend(memo.report(made) for _ in range(10))

    threads = [threading.Thread(target=analyse) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.failure for report in reports] == [None] * 40
    assert {report.parameters for report in reports} == {EXPECTED}


def test_an_interrupt_is_raised():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        AccessMemo().report(call(ptx=interrupted))


def test_a_report_cannot_be_changed():
    report = AccessMemo().report(call())
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.parameters[0].written = True


def test_too_many_parameters_are_refused():
    rows = ", ".join(f".param .u64 p{i}" for i in range(40))
    ptx = f".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry kernel({rows})\n{{\n ret;\n}}\n"
    with pytest.raises(ValueError, match="40 parameters"):
        AccessMemo().report(call(*(pointer(0, 4096) for _ in range(40)), ptx=lambda: ptx))


def test_a_daemons_kernel_writes_y_and_its_workspace_alone(daemon):
    with qgemm.Client(daemon) as client:
        results = client.tune("256x512", m=[1, 64], effort="model_only", progress=False)
        memo, addresses = AccessMemo(), dict.fromkeys(("x", "weights", "scales", "y", "workspace"), 4096)
        for m in (1, 64):
            pick = results.pick("256x512", m=m)
            for rows in (m, None, m):
                made = Call.of_pick(pick, addresses, rows, lambda pick=pick: client.get_ptx(pick))
                written = [pick.launch.arguments[row.index].name for row in memo.report(made).parameters if row.written]
                assert "y" in written and set(written) <= {"y", "workspace"}
        assert memo.counts == access.AccessCounts(analyses=4, failures=0, repeats=2)
