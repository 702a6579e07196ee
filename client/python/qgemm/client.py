"""The blocking client of one qgemmd.

    with qgemm.Client() as client:
        results = client.tune("5376x4096", m=[1, 16, 64])
        kernel = client.get_kernel(results.pick("5376x4096", 13))
"""

import time

import grpc

from qgemm import api, calls, errors, security
from qgemm.progress import make_progress
from qgemm.retry import Retry
from qgemm.types import CacheStats, DeviceInfo, Job

_NO_VALUE = object()


class Client:
    """May be used by several threads at once. Does not wait for the daemon when made: a call connects when it must.

    `server`: unix:PATH or HOST:PORT; None: QGEMM_SERVER, else the daemon's default socket. `timeout`: seconds until
    the deadline of every call but tune; `tune_timeout`: of tune, None = none. `client_id`: who calls, for the daemon's
    queues; None: QGEMM_CLIENT_ID, else user@host. `token`: what a daemon with a tokens file asks for; None: QGEMM_TOKEN,
    else the file QGEMM_TOKEN_FILE. `tls_ca`, `tls_cert`, `tls_key`: PEM files; None: QGEMM_TLS_CA (else the system's
    roots), QGEMM_TLS_CERT, QGEMM_TLS_KEY. To other machines TLS is always spoken. Every call raises an error of
    qgemm.errors; ValueError where a request cannot even be made.
    """

    def __init__(self, server=None, *, timeout=30.0, tune_timeout=None, retry=Retry(), client_id=None,
                 token=None, tls_ca=None, tls_cert=None, tls_key=None, sleep=time.sleep, clock=time.monotonic):  # fmt: skip
        self.address = calls.checked_address(server)
        self._timeout, self._tune_timeout, self._retry = timeout, tune_timeout, retry
        self._metadata = security.metadata(client_id, token)
        self._credentials = security.channel_credentials(self.address, tls_ca, tls_cert, tls_key)
        self._sleep, self._clock = sleep, clock
        self._channel = security.open_channel(grpc, self.address, self._credentials, calls.CHANNEL_OPTIONS)

    def close(self):
        """Ends running calls with Cancelled."""
        self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        return f"Client({self.address!r})"

    def tune(self, problems, m, *, effort="balanced", target="", retune=False, progress=None, timeout=_NO_VALUE):
        """Tunes every (problem, bucket of m) and returns their TuneResults; what the daemon has stored is not tuned
        again. `problems`: Problem, "NxK", or a list of them. `effort`: "balanced", "exhaustive" or "model-only".
        `progress`: True, False, None (where somebody looks) or a function of TuneProgress. Results may hold errors of
        their own: `raise_for_errors()`."""
        call = calls.TuneCall(calls.tune_request(problems, m, effort, target, retune))
        return self._tuned("Tune", call.request, call, progress, timeout)

    def submit(self, problems, m, *, effort="balanced", target="", retune=False, priority=0, timeout=_NO_VALUE):
        """Starts a tune that survives this client and a restart of the daemon; its job id, for `watch`. None: the
        daemon has everything stored already."""
        call = calls.TuneCall(calls.tune_request(problems, m, effort, target, retune, True, priority))
        for event in self._stream("Tuner", "Tune", call.request, self._pick(timeout, self._timeout)):
            call.add(event)
            if call.job_id is not None:
                break
        return call.job_id

    def watch(self, job_id, *, progress=None, timeout=_NO_VALUE):
        """Waits for a job and returns its TuneResults, as `tune` does. NotFound: no such job."""
        request = api.message("WatchJobRequest")(job_id=job_id)
        return self._tuned("WatchJob", request, calls.TuneCall(), progress, timeout)

    def jobs(self, *, unfinished_only=False, client="", timeout=_NO_VALUE):
        """The daemon's jobs in the order of their acceptance, as a list of Job."""
        request = api.message("ListJobsRequest")(unfinished_only=unfinished_only, client=client)
        answer = self._unary("Tuner", "ListJobs", request, self._pick(timeout, self._timeout))
        return [Job.from_proto(message) for message in answer.jobs]

    def cancel_job(self, job_id, *, timeout=_NO_VALUE):
        """Withdraws a job; the Job as it is then. NotFound: no such job."""
        request = api.message("CancelJobRequest")(job_id=job_id)
        return Job.from_proto(self._unary("Tuner", "CancelJob", request, self._pick(timeout, self._timeout)).job)

    def lookup(self, problems, m, *, target="", timeout=_NO_VALUE):
        """The stored picks, as TuneResults; a result without a pick says why in `error`."""
        call = calls.LookupCall(problems, m, target)
        return call.results(self._unary("Tuner", "Lookup", call.request, self._pick(timeout, self._timeout)))

    def get_kernel(self, pick_or_sha256, *, timeout=_NO_VALUE):
        """The Kernel of a pick, with its launch spec, or of a SHA-256. NotFound: the daemon has none."""
        (kernel,) = self.get_kernels([pick_or_sha256], timeout=timeout).values()
        return kernel

    def get_kernels(self, picks_or_sha256, *, timeout=_NO_VALUE):
        """{sha256: Kernel} of many in one call."""
        kernels = {}
        for call in calls.kernel_calls(picks_or_sha256):
            self._collect(call, timeout)
            kernels.update(call.kernels())
        return kernels

    def get_ptx(self, pick_or_sha256, *, timeout=_NO_VALUE):
        """The PTX text of a kernel."""
        call = calls.KernelCall([pick_or_sha256], ptx=True)
        self._collect(call, timeout)
        return call.ptx()

    def describe(self, *, timeout=_NO_VALUE):
        """What the daemon works for: its GPU or target, its compiler, its state."""
        request = api.message("DescribeRequest")()
        return DeviceInfo.from_proto(self._unary("Device", "Describe", request, self._pick(timeout, self._timeout)))

    def cache_stats(self, *, timeout=_NO_VALUE):
        request = api.message("CacheStatsRequest")()
        return CacheStats.from_proto(self._unary("Cache", "Stats", request, self._pick(timeout, self._timeout)))

    def _tuned(self, method, request, call, progress, timeout):
        shown = make_progress(progress)
        try:
            for event in self._stream("Tuner", method, request, self._pick(timeout, self._tune_timeout)):
                news = call.add(event)
                if news is not None:
                    shown.update(news)
        finally:
            shown.close()
        return call.results()

    @staticmethod
    def _pick(value, default):
        return default if value is _NO_VALUE else value

    def _collect(self, call, timeout):
        for chunk in self._stream("Tuner", "GetKernels", call.request, self._pick(timeout, self._timeout), call.restart):
            call.add(chunk)

    def _unary(self, service, name, request, timeout):
        method = api.method(service, name)
        send = self._channel.unary_unary(method.path, method.request.SerializeToString, method.response.FromString)
        for left in self._tries(timeout):
            with left:
                return send(request, timeout=left.seconds(), metadata=self._metadata)

    def _stream(self, service, name, request, timeout, restart=lambda: None):
        """Yields the answers; after UNAVAILABLE calls `restart` and asks again."""
        method = api.method(service, name)
        send = self._channel.unary_stream(method.path, method.request.SerializeToString, method.response.FromString)
        for left in self._tries(timeout):
            with left:
                restart()
                running = send(request, timeout=left.seconds(), metadata=self._metadata)
                try:
                    yield from running
                finally:
                    running.cancel()
                return

    def _tries(self, timeout):
        """Yields one context per try; a context swallows UNAVAILABLE while another try is due."""
        deadline = None if timeout is None else self._clock() + timeout
        failures = 0
        while True:
            attempt = _Attempt(self, deadline, failures)
            yield attempt
            failures += 1
            self._sleep(attempt.wait_s)


class _Attempt:
    def __init__(self, client, deadline, failures):
        self._client, self._deadline, self._failures = client, deadline, failures
        self.wait_s = 0.0

    def seconds(self):
        return None if self._deadline is None else max(self._deadline - self._client._clock(), 0.001)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if not isinstance(error, grpc.RpcError):
            return False
        mapped = errors.from_rpc(error, self._client.address)
        retry, failures = self._client._retry, self._failures + 1
        self.wait_s = retry.wait_after(mapped, failures)
        if self.wait_s is not None and retry.again(failures, self._client._clock() + self.wait_s, self._deadline):
            return True
        raise mapped from error
