"""Client and AsyncClient against the scripted daemon: the same cases for both."""

import asyncio
import hashlib
import threading

import grpc
import pytest
from conftest import pick_message

import qgemm
from qgemm import api, calls, security


class Blocking:
    """Calls AsyncClient as if it were Client."""

    def __init__(self, *arguments, **options):
        self._client = qgemm.AsyncClient(*arguments, **options)
        self._loop = asyncio.new_event_loop()

    def __getattr__(self, name):
        call = getattr(self._client, name)
        return lambda *arguments, **options: self._loop.run_until_complete(call(*arguments, **options))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


@pytest.fixture(params=["sync", "asyncio"])
def make(request, clock):
    """Makes the client of either kind, with a clock that stands still."""

    def made(address, **options):
        if request.param == "sync":
            return qgemm.Client(address, clock=clock, sleep=clock.sleep, **options)
        return Blocking(address, clock=clock, sleep=clock.sleep_async, **options)

    return made


EVENT = api.message("TuneEvent")
PROBLEM = qgemm.Problem.parse("256x512")


def tune_events(request, context):
    """Progress, the results in reverse order, the summary."""
    yield EVENT(progress=api.message("TuneProgress")(kernels_wanted=3, kernels_compiled=1, elapsed_s=0.5))
    pairs = [(i, m) for i in range(len(request.problems)) for m in request.m]
    for index, m in reversed(pairs):
        problem = qgemm.Problem.from_proto(request.problems[index])
        yield EVENT(result=api.message("TuneResult")(problem_index=index, m_bucket=m, pick=pick_message(problem, m)))
    yield EVENT(summary=api.message("TuneSummary")(compiles=3, timings=7, wall_s=1.5))


def test_tune_returns_the_results_in_the_order_of_the_request(fake, make):
    fake.script["Tune"] = tune_events
    seen = []
    with make(fake.address) as client:
        results = client.tune(["256x512", "64x128"], m=[13, 1, 16], progress=seen.append)
    assert [(r.problem.n, r.m_bucket) for r in results] == [(256, 1), (256, 16), (64, 1), (64, 16)]
    assert [p.kernels_compiled for p in seen] == [1]
    assert results.summary.timings == 7
    pick = results.pick("256x512", 9)
    assert (pick.source, pick.reduction, pick.time_us, pick.effort) == ("MEASURED", "workspace", 9.5, "balanced")
    assert results.raise_for_errors() is results


def test_launch_spec_sizes_grid_and_workspace_by_the_real_m():
    spec = qgemm.Pick.from_proto(pick_message(PROBLEM, 64)).launch
    assert spec.grid(33) == (3, 10, 4)
    assert spec.ticket_bytes(33) == 256  # 3 * 40, rounded up
    assert spec.workspace_bytes(33) == 256 + 3 * 4096
    assert [(a.name, getattr(a, "role", None), getattr(a, "value", None)) for a in spec.arguments] == [
        ("x", "x", None), ("m", None, "m"), ("k", None, 512),
    ]  # fmt: skip


def test_a_problem_without_a_pick_is_an_error_of_that_result_alone(fake, make):
    def script(request, context):
        rejection = api.message("Rejection")(reason="spills registers", candidates=3)
        yield EVENT(result=api.message("TuneResult")(problem_index=0, m_bucket=1, pick=pick_message(PROBLEM, 1)))
        failed = api.message("TuneResult")(problem_index=0, m_bucket=2, error="no candidate is right")
        failed.rejections.append(rejection)
        yield EVENT(result=failed)
        yield EVENT(summary=api.message("TuneSummary")())

    fake.script["Tune"] = script
    with make(fake.address) as client:
        results = client.tune(PROBLEM, m=[1, 2])
    assert len(results.picks) == 1
    with pytest.raises(qgemm.TuneFailed, match="no candidate is right; 3 candidates: spills registers") as caught:
        results.raise_for_errors()
    assert caught.value.results is results
    with pytest.raises(KeyError, match="M = 2"):
        results.pick(PROBLEM, 2)


def test_an_old_daemon_that_overlooks_int8_activations_is_noticed(fake, make):
    def script(request, context):
        plain = qgemm.Problem(request.problems[0].n, request.problems[0].k)
        yield EVENT(result=api.message("TuneResult")(problem_index=0, m_bucket=1, pick=pick_message(plain, 1)))
        yield EVENT(summary=api.message("TuneSummary")())

    def lookup(request, context):
        answer = api.message("LookupAnswer")(pick=pick_message(PROBLEM, 1))
        return api.message("LookupResponse")(answers=[answer])

    fake.script["Tune"], fake.script["Lookup"] = script, lookup
    int8 = qgemm.Problem.parse("256x512", act_quantization="int8")
    with make(fake.address) as client:
        assert client.tune(PROBLEM, m=1).picks and client.lookup(PROBLEM, m=1).picks
        for call in (client.tune, client.lookup):
            with pytest.raises(qgemm.FailedPrecondition, match="without int8 activations, update it"):
                call(int8, m=1)


def test_unavailable_is_retried_and_what_arrived_stays(fake, make, clock):
    def script(request, context):
        if len(fake.calls) == 1:
            yield EVENT(result=api.message("TuneResult")(problem_index=0, m_bucket=1, pick=pick_message(PROBLEM, 1)))
            context.abort(grpc.StatusCode.UNAVAILABLE, "no compile worker can be started: out of memory")
        yield EVENT(result=api.message("TuneResult")(problem_index=0, m_bucket=2, pick=pick_message(PROBLEM, 2)))
        yield EVENT(summary=api.message("TuneSummary")())

    fake.script["Tune"] = script
    with make(fake.address) as client:
        assert len(client.tune(PROBLEM, m=[1, 2])) == 2
    assert fake.calls == ["Tune", "Tune"]
    assert len(clock.slept) == 1 and 0.05 <= clock.slept[0] <= 0.1


def test_unavailable_to_the_end_is_the_daemons_own_sentence(fake, make, clock):
    def script(request, context):
        context.abort(grpc.StatusCode.UNAVAILABLE, "the GPU is lost")

    fake.script["Lookup"] = script
    with make(fake.address) as client, pytest.raises(qgemm.Unavailable, match="^the GPU is lost$"):
        client.lookup(PROBLEM, m=1)
    assert len(fake.calls) == 4
    assert [0.5 * 0.1 * 2**i <= slept <= 0.1 * 2**i for i, slept in enumerate(clock.slept)] == [True] * 3


def test_a_full_queue_is_tried_again_when_the_daemon_says(fake, make, clock):
    def script(request, context):
        if len(fake.calls) == 1:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", "1500"),))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue holds 4096 jobs")
        yield EVENT(summary=api.message("TuneSummary")())
        yield EVENT(result=api.message("TuneResult")(problem_index=0, m_bucket=1, error="none"))

    fake.script["Tune"] = script
    with make(fake.address) as client:
        assert len(client.tune(PROBLEM, m=1)) == 1
    assert clock.slept == [1.5]


def job(**fields):
    return api.message("Job")(job_id="j-1", state=1, client="me", job_class=2, detached=True, effort=2, **fields)


def test_a_submitted_job_is_watched_listed_and_cancelled(fake, make):
    accepted = api.message("JobAccepted")

    def tune(request, context):
        assert request.detach and request.priority == 7
        yield EVENT(accepted=accepted(job_id="j-1"))

    def watch(request, context):
        asked = api.message("TuneRequest")(problems=[PROBLEM.to_proto()], m=[1, 16])
        yield EVENT(accepted=accepted(job_id=request.job_id, request=asked))
        yield from tune_events(asked, context)

    fake.script.update(Tune=tune, WatchJob=watch)
    fake.script["ListJobs"] = lambda request, context: api.message("ListJobsResponse")(jobs=[job()])
    fake.script["CancelJob"] = lambda request, context: api.message("CancelJobResponse")(job=job(error="cancelled"))
    with make(fake.address) as client:
        assert client.submit(PROBLEM, m=[1, 16], priority=7) == "j-1"
        assert [result.m_bucket for result in client.watch("j-1")] == [1, 16]
        (listed,) = client.jobs()
        assert (listed.job_id, listed.state, listed.job_class, listed.effort) == ("j-1", "queued", "batch", "balanced")
        assert client.cancel_job("j-1").error == "cancelled"


def test_many_kernels_are_asked_for_in_parts(fake, make):
    data = [index.to_bytes(4, "little") for index in range(1500)]
    by_sha256 = {hashlib.sha256(each).hexdigest(): each for each in data}

    def script(request, context):
        assert len(request.sha256) <= 1024
        for sha256 in request.sha256:
            yield from kernel_chunks(by_sha256[sha256], 2, sha256)

    fake.script["GetKernels"] = script
    with make(fake.address) as client:
        kernels = client.get_kernels(list(by_sha256))
    assert {sha256: kernel.cubin for sha256, kernel in kernels.items()} == by_sha256
    assert fake.calls == ["GetKernels"] * 2


def test_no_retry_whose_wait_would_outlast_the_deadline(fake, make, clock):
    def script(request, context):
        context.abort(grpc.StatusCode.UNAVAILABLE, "the GPU is lost")

    fake.script["Lookup"] = script
    retry = qgemm.Retry(attempts=100, first_wait_s=8.0, longest_wait_s=8.0)
    with make(fake.address, timeout=20.0, retry=retry) as client, pytest.raises(qgemm.Unavailable):
        client.lookup(PROBLEM, m=1)
    assert 3 <= len(fake.calls) <= 5 and sum(clock.slept) <= 20.0


def test_no_daemon_says_how_to_start_one(tmp_path, make, clock):
    with make(f"unix:{tmp_path}/nobody.sock", retry=qgemm.Retry(attempts=2)) as client:
        with pytest.raises(qgemm.Unavailable, match="cannot reach qgemmd at unix:.*: start one with `qgemmd`"):
            client.describe()
    assert len(clock.slept) == 1


@pytest.mark.parametrize(
    "code, kind",
    [("INVALID_ARGUMENT", qgemm.InvalidRequest), ("NOT_FOUND", qgemm.NotFound), ("DATA_LOSS", qgemm.DataLoss),
     ("FAILED_PRECONDITION", qgemm.FailedPrecondition), ("RESOURCE_EXHAUSTED", qgemm.ResourceExhausted),
     ("UNAUTHENTICATED", qgemm.Unauthenticated), ("PERMISSION_DENIED", qgemm.PermissionDenied)],
)  # fmt: skip
def test_a_status_is_an_error_of_its_own_type_and_is_not_retried(fake, make, code, kind):
    def script(request, context):
        context.abort(grpc.StatusCode[code], "n 0 is not allowed: use 1 to 2147483647")

    fake.script["Lookup"] = script
    with make(fake.address) as client, pytest.raises(kind, match="^n 0 is not allowed") as caught:
        client.lookup(PROBLEM, m=1)
    assert caught.value.code == code and fake.calls == ["Lookup"]
    assert isinstance(caught.value, qgemm.QgemmError)


def test_a_call_that_hangs_ends_at_its_deadline(fake, make):
    released = threading.Event()

    def script(request, context):
        released.wait(30)
        return api.message("DescribeResponse")()

    fake.script["Describe"] = script
    try:
        with make(fake.address, timeout=0.2) as client, pytest.raises(qgemm.DeadlineExceeded, match="raise the call's"):
            client.describe()
    finally:
        released.set()


def test_a_deadline_of_the_daemons_own_is_told_in_its_words(fake, make):
    def script(request, context):
        context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no work was begun within queue_deadline_s of 10")

    fake.script["Lookup"] = script
    with make(fake.address) as client, pytest.raises(qgemm.DeadlineExceeded, match="^no work was begun within"):
        client.lookup(PROBLEM, m=1)


def test_lookup_says_why_there_is_no_pick(fake, make):
    def script(request, context):
        answer = api.message("LookupAnswer")
        assert [key.m for key in request.keys] == [1, 64] and request.target == "h200"
        return api.message("LookupResponse")(
            answers=[answer(pick=pick_message(PROBLEM, 1), stale=True), answer(miss_reason="never tuned")]
        )

    fake.script["Lookup"] = script
    with make(fake.address) as client:
        found, missing = client.lookup(PROBLEM, m=[1, 49], target="h200")
    assert found.stale and found.pick.config == "mma_t1"
    assert missing.pick is None and missing.error == "never tuned"


def kernel_chunks(data, cut, sha256):
    chunk = api.message("KernelChunk")
    first = chunk(sha256=sha256, total_bytes=len(data), offset=0, data=data[:cut])
    first.info.sha256, first.info.entry = sha256, "qgemm_mma"
    return [first, chunk(sha256=sha256, offset=cut, data=data[cut:])]


def test_a_kernel_is_its_bytes_and_its_picks_launch_spec(fake, make):
    data = bytes(range(256)) * 10
    sha256 = hashlib.sha256(data).hexdigest()
    fake.script["GetKernels"] = lambda request, context: iter(kernel_chunks(data, 1000, sha256))
    message = pick_message(PROBLEM, 1)
    message.kernel.sha256 = sha256
    with make(fake.address) as client:
        kernel = client.get_kernel(qgemm.Pick.from_proto(message))
        assert kernel.cubin == data and kernel.info.entry == "qgemm_mma" and kernel.launch.tile_m == 16
        assert client.get_kernel(sha256).launch is None


@pytest.mark.parametrize("damage", ["flip", "gap", "short"])
def test_damaged_kernel_bytes_are_data_loss(fake, make, damage):
    data = bytes(1000)
    sha256 = hashlib.sha256(data).hexdigest()
    chunks = kernel_chunks(data, 600, sha256)
    if damage == "flip":
        chunks[1].data = b"\1" + chunks[1].data[1:]
    elif damage == "gap":
        chunks[1].offset += 1
    else:
        del chunks[1]
    fake.script["GetKernels"] = lambda request, context: iter(chunks)
    with make(fake.address) as client, pytest.raises(qgemm.DataLoss, match=sha256):
        client.get_kernel(sha256)


def test_the_client_id_travels(fake, make):
    fake.script["Describe"] = lambda request, context: api.message("DescribeResponse")(target="h200", arch="sm_90a")
    with make(fake.address, client_id="exporter") as client:
        assert client.describe().arch == "sm_90a"
    assert fake.metadata[0]["client_id"] == "exporter"


def test_a_client_says_who_it_is_and_shows_its_token(fake, make, monkeypatch, tmp_path):
    fake.script["Describe"] = lambda request, context: api.message("DescribeResponse")(target="h200", arch="sm_90a")
    monkeypatch.setenv("USER", "alice")
    monkeypatch.delenv("QGEMM_CLIENT_ID", raising=False)
    with make(fake.address) as client:
        client.describe()
    assert fake.metadata[0]["client_id"].startswith("alice@")
    assert "authorization" not in fake.metadata[0]
    (tmp_path / "token").write_text("from-file\n")
    monkeypatch.setenv("QGEMM_TOKEN_FILE", str(tmp_path / "token"))
    with make(fake.address) as client, make(fake.address, token="given") as other:
        client.describe()
        other.describe()
    assert [sent["authorization"] for sent in fake.metadata[1:]] == ["Bearer from-file", "Bearer given"]
    monkeypatch.setenv("QGEMM_TOKEN_FILE", str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="QGEMM_TOKEN_FILE"):
        make(fake.address)


def test_tls_is_for_other_machines_and_where_it_is_asked_for(monkeypatch, tmp_path):
    for name in ("QGEMM_TLS_CA", "QGEMM_TLS_CERT", "QGEMM_TLS_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert security.channel_credentials("unix:/x") is None
    assert security.channel_credentials("127.0.0.1:1") is None
    assert security.channel_credentials("host:1") is not None
    (tmp_path / "ca.pem").write_text("x")
    assert security.channel_credentials("localhost:1", str(tmp_path / "ca.pem")) is not None
    assert security.channel_credentials("unix:/x", str(tmp_path / "ca.pem")) is None
    with pytest.raises(ValueError, match="needed together"):
        security.channel_credentials("host:1", tls_cert="a.pem")
    with pytest.raises(ValueError, match="tls_ca"):
        security.channel_credentials("host:1", tls_ca=str(tmp_path / "missing"))


@pytest.mark.parametrize("address", ["unix:", "localhost", "localhost:0", "a b:1", "localhost:99999", "::1:80"])
def test_an_address_that_is_none_is_refused(address, make):
    with pytest.raises(ValueError, match="use unix:PATH or HOST:PORT"):
        make(address)


def test_the_address_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("QGEMM_SERVER", "unix:/x")
    assert calls.default_address() == "unix:/x"
    monkeypatch.delenv("QGEMM_SERVER")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    assert calls.default_address() == "unix:/run/user/1/qgemm.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert calls.default_address() == "unix:/run/qgemm/qgemm.sock"
