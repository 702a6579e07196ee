"""The asyncio client: the same calls as Client, awaited.

    async with qgemm.AsyncClient() as client:
        results = await client.tune("5376x4096", m=[1, 16, 64])
"""

import asyncio
import time

import grpc
import grpc.aio

from qgemm import api, calls, errors, security
from qgemm.progress import make_progress
from qgemm.retry import Retry
from qgemm.types import CacheStats, DeviceInfo, Job

_NO_VALUE = object()


class AsyncClient:
    """Belongs to the event loop that it is used in. Arguments and errors are Client's; cancelling the task that awaits
    a call cancels the call, and with it the daemon's work for it."""

    def __init__(self, server=None, *, timeout=30.0, tune_timeout=None, retry=Retry(), client_id=None,
                 token=None, tls_ca=None, tls_cert=None, tls_key=None, sleep=asyncio.sleep, clock=time.monotonic):  # fmt: skip
        self.address = calls.checked_address(server)
        self._timeout, self._tune_timeout, self._retry = timeout, tune_timeout, retry
        self._metadata = security.metadata(client_id, token)
        self._credentials = security.channel_credentials(self.address, tls_ca, tls_cert, tls_key)
        self._sleep, self._clock = sleep, clock
        self._open = None

    @property
    def _channel(self):
        if self._open is None:
            self._open = security.open_channel(grpc.aio, self.address, self._credentials, calls.CHANNEL_OPTIONS)
        return self._open

    async def close(self):
        if self._open is not None:
            await self._open.close()
            self._open = None

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    def __repr__(self):
        return f"AsyncClient({self.address!r})"

    async def tune(self, problems, m, *, effort="balanced", target="", retune=False, progress=None, timeout=_NO_VALUE):
        """As Client.tune."""
        call = calls.TuneCall(calls.tune_request(problems, m, effort, target, retune))
        return await self._tuned("Tune", call.request, call, progress, timeout)

    async def submit(self, problems, m, *, effort="balanced", target="", retune=False, priority=0, timeout=_NO_VALUE):
        """As Client.submit."""
        call = calls.TuneCall(calls.tune_request(problems, m, effort, target, retune, True, priority))
        await self._stream("Tuner", "Tune", call.request, self._pick(timeout, self._timeout), call.add)
        return call.job_id

    async def watch(self, job_id, *, progress=None, timeout=_NO_VALUE):
        """As Client.watch."""
        request = api.message("WatchJobRequest")(job_id=job_id)
        return await self._tuned("WatchJob", request, calls.TuneCall(), progress, timeout)

    async def jobs(self, *, unfinished_only=False, client="", timeout=_NO_VALUE):
        """As Client.jobs."""
        request = api.message("ListJobsRequest")(unfinished_only=unfinished_only, client=client)
        answer = await self._unary("Tuner", "ListJobs", request, self._pick(timeout, self._timeout))
        return [Job.from_proto(message) for message in answer.jobs]

    async def cancel_job(self, job_id, *, timeout=_NO_VALUE):
        """As Client.cancel_job."""
        request = api.message("CancelJobRequest")(job_id=job_id)
        answer = await self._unary("Tuner", "CancelJob", request, self._pick(timeout, self._timeout))
        return Job.from_proto(answer.job)

    async def lookup(self, problems, m, *, target="", timeout=_NO_VALUE):
        """As Client.lookup."""
        call = calls.LookupCall(problems, m, target)
        return call.results(await self._unary("Tuner", "Lookup", call.request, self._pick(timeout, self._timeout)))

    async def get_kernel(self, pick_or_sha256, *, timeout=_NO_VALUE):
        """As Client.get_kernel."""
        (kernel,) = (await self.get_kernels([pick_or_sha256], timeout=timeout)).values()
        return kernel

    async def get_kernels(self, picks_or_sha256, *, timeout=_NO_VALUE):
        """As Client.get_kernels."""
        kernels = {}
        for call in calls.kernel_calls(picks_or_sha256):
            await self._collect(call, timeout)
            kernels.update(call.kernels())
        return kernels

    async def get_ptx(self, pick_or_sha256, *, timeout=_NO_VALUE):
        """As Client.get_ptx."""
        call = calls.KernelCall([pick_or_sha256], ptx=True)
        await self._collect(call, timeout)
        return call.ptx()

    async def describe(self, *, timeout=_NO_VALUE):
        """As Client.describe."""
        request = api.message("DescribeRequest")()
        answer = await self._unary("Device", "Describe", request, self._pick(timeout, self._timeout))
        return DeviceInfo.from_proto(answer)

    async def cache_stats(self, *, timeout=_NO_VALUE):
        """As Client.cache_stats."""
        request = api.message("CacheStatsRequest")()
        answer = await self._unary("Cache", "Stats", request, self._pick(timeout, self._timeout))
        return CacheStats.from_proto(answer)

    async def _tuned(self, method, request, call, progress, timeout):
        shown = make_progress(progress)

        def take(event):
            news = call.add(event)
            if news is not None:
                shown.update(news)

        try:
            await self._stream("Tuner", method, request, self._pick(timeout, self._tune_timeout), take)
        finally:
            shown.close()
        return call.results()

    @staticmethod
    def _pick(value, default):
        return default if value is _NO_VALUE else value

    async def _collect(self, call, timeout):
        await self._stream(
            "Tuner", "GetKernels", call.request, self._pick(timeout, self._timeout), call.add, call.restart
        )

    async def _unary(self, service, name, request, timeout):
        method = api.method(service, name)
        send = self._channel.unary_unary(method.path, method.request.SerializeToString, method.response.FromString)

        async def once(seconds):
            return await send(request, timeout=seconds, metadata=self._metadata)

        return await self._retried(timeout, once)

    async def _stream(self, service, name, request, timeout, take, restart=lambda: None):
        method = api.method(service, name)
        send = self._channel.unary_stream(method.path, method.request.SerializeToString, method.response.FromString)

        async def once(seconds):
            restart()
            running = send(request, timeout=seconds, metadata=self._metadata)
            try:
                async for answer in running:
                    take(answer)
            finally:
                running.cancel()

        await self._retried(timeout, once)

    async def _retried(self, timeout, once):
        deadline = None if timeout is None else self._clock() + timeout
        failures = 0
        while True:
            try:
                return await once(None if deadline is None else max(deadline - self._clock(), 0.001))
            except grpc.RpcError as error:
                mapped = errors.from_rpc(error, self.address)
                failures += 1
                wait_s = self._retry.wait_after(mapped, failures)
                if wait_s is None or not self._retry.again(failures, self._clock() + wait_s, deadline):
                    raise mapped from error
            await self._sleep(wait_s)
