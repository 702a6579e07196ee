"""What the blocking and the asyncio client share: addresses, requests, and answers put together. No I/O."""

import hashlib
import os
import re

from qgemm import api
from qgemm.buckets import bucket_for
from qgemm.errors import DataLoss, FailedPrecondition, QgemmError
from qgemm.results import TuneResults
from qgemm.types import (
    Kernel,
    KernelInfo,
    Pick,
    Problem,
    TuneProgress,
    TuneResult,
    TuneSummary,
    as_problem,
    effort_number,
)

# As in the C++ client: a lookup of 4096 keys answers with some 10 MB; a daemon that hangs is noticed by pings; and a
# daemon is addressed directly, whatever http_proxy says.
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_MAX_KERNEL_BYTES = 256 << 20


def default_address():
    """QGEMM_SERVER, else unix:$XDG_RUNTIME_DIR/qgemm.sock, else unix:/run/qgemm/qgemm.sock."""
    server = os.environ.get("QGEMM_SERVER")
    if server:
        return server
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR")
    return f"unix:{runtime_dir}/qgemm.sock" if runtime_dir else "unix:/run/qgemm/qgemm.sock"


def checked_address(server):
    address = server or default_address()
    if address.startswith("unix:"):
        if len(address) > len("unix:"):
            return address
    elif re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:/\s]+):(\d{1,5})", address):
        if 1 <= int(address.rsplit(":", 1)[1]) <= 65535:
            return address
    raise ValueError(f'server "{address}" is not allowed: use unix:PATH or HOST:PORT')


def _as_list(value, single):
    return [value] if isinstance(value, single) else list(value)


def tune_request(problems, m, effort, target, retune, detach=False, priority=0):
    problems = [as_problem(p) for p in _as_list(problems, (Problem, str))]
    buckets = sorted({bucket_for(rows) for rows in _as_list(m, int)})
    if not problems or not buckets:
        raise ValueError("problems and m are needed: at least one of each")
    return api.message("TuneRequest")(
        problems=[problem.to_proto() for problem in problems],
        m=buckets,
        effort=effort_number(effort),
        target=target or "",
        retune=retune,
        detach=detach,
        priority=priority,
    )


def _pick_for(problem, message):
    """The Pick of an answer that has one. FailedPrecondition: the daemon did not see what the problem asks for."""
    if not message.HasField("pick"):
        return None
    pick = Pick.from_proto(message.pick)
    if pick.problem.act_quantization != problem.act_quantization:
        raise FailedPrecondition(
            f"the daemon answered {problem} by a pick with act_quantization {pick.problem.act_quantization}: it is of a "
            "version without int8 activations, update it"
        )
    return pick


class TuneCall:
    """The events of one Tune or WatchJob, and the results in the request's order whatever the order of their arrival.
    After a broken stream the same call goes on: what had arrived stays."""

    def __init__(self, request=None):
        """`request`: what was asked for; None: the event `accepted` says it."""
        self.request, self.job_id, self.summary = request, None, None
        self._results = {}
        self._read(request)

    def _read(self, request):
        self.problems = [] if request is None else [Problem.from_proto(message) for message in request.problems]
        self.buckets = [] if request is None else sorted({bucket_for(rows) for rows in request.m})

    def add(self, event):
        """Takes one TuneEvent; returns a TuneProgress where it is one."""
        kind = event.WhichOneof("event")
        if kind == "progress":
            return TuneProgress.from_proto(event.progress)
        if kind == "summary":
            self.summary = TuneSummary.from_proto(event.summary)
        elif kind == "accepted":
            self.job_id = event.accepted.job_id
            if self.request is None:
                self._read(event.accepted.request)
        elif kind == "result":
            self._add_result(event.result)
        return None

    def _add_result(self, message):
        bucket = message.m_bucket or message.pick.m_bucket
        if not 0 <= message.problem_index < len(self.problems) or bucket not in self.buckets:
            return  # nobody asked for it
        problem = self.problems[message.problem_index]
        pick = _pick_for(problem, message)
        reasons = "".join(f"; {r.candidates} candidates: {r.reason}" for r in list(message.rejections)[:3])
        error = "" if pick else (message.error or "the daemon made no pick and gave no reason") + reasons
        self._results[message.problem_index, bucket] = TuneResult(
            problem, bucket, pick, message.cached, message.stale, error
        )

    def results(self):
        wanted = [(index, bucket) for index in range(len(self.problems)) for bucket in self.buckets]
        if self.summary is None:
            raise QgemmError("the daemon ended Tune without a summary")
        if len(self._results) != len(wanted):
            raise QgemmError(f"the daemon sent {len(self._results)} of {len(wanted)} results that were asked for")
        return TuneResults([self._results[key] for key in wanted], self.summary)


class LookupCall:
    """One Lookup of every (problem, bucket of m)."""

    def __init__(self, problems, m, target):
        problems = [as_problem(p) for p in _as_list(problems, (Problem, str))]
        buckets = sorted({bucket_for(rows) for rows in _as_list(m, int)})
        self._keys = [(problem, bucket) for problem in problems for bucket in buckets]
        key = api.message("LookupKey")
        self.request = api.message("LookupRequest")(
            keys=[key(problem=problem.to_proto(), m=bucket) for problem, bucket in self._keys], target=target or ""
        )

    def results(self, response):
        if len(response.answers) != len(self._keys):
            raise QgemmError(f"the daemon answered {len(response.answers)} of {len(self._keys)} keys")
        results = []
        for (problem, bucket), answer in zip(self._keys, response.answers):
            pick = _pick_for(problem, answer)
            error = "" if pick else answer.miss_reason or "not tuned"
            results.append(TuneResult(problem, bucket, pick, pick is not None, answer.stale, error))
        hits = sum(result.pick is not None for result in results)
        return TuneResults(results, TuneSummary(cache_hits=hits))


MOST_KERNELS = 1024  # of one GetKernels


def kernel_calls(wanted):
    """As many KernelCalls as it takes."""
    wanted = _as_list(wanted, (Pick, str))
    return [KernelCall(wanted[i : i + MOST_KERNELS]) for i in range(0, len(wanted), MOST_KERNELS)]


class KernelCall:
    """The chunks of kernels, put together and checked."""

    def __init__(self, wanted, ptx=False):
        self._launch = {}
        hashes = []
        for item in _as_list(wanted, (Pick, str)):
            sha256 = item.kernel_sha256 if isinstance(item, Pick) else item
            if not re.fullmatch(r"[0-9a-f]{64}", sha256):
                raise ValueError(f'kernel "{sha256}" is not a SHA-256: 64 lower-case hex digits are needed')
            if isinstance(item, Pick):
                self._launch.setdefault(sha256, item.launch)
            if sha256 not in hashes:
                hashes.append(sha256)
        self._ptx = ptx
        self.request = api.message("GetKernelsRequest")(sha256=hashes, ptx=ptx)
        self._bytes, self._info, self._total = {}, {}, {}

    def restart(self):
        self._bytes, self._info, self._total = {}, {}, {}

    def add(self, chunk):
        data = self._bytes.setdefault(chunk.sha256, bytearray())
        if chunk.HasField("info"):
            self._info[chunk.sha256] = KernelInfo.from_proto(chunk.info)
            self._total[chunk.sha256] = chunk.total_bytes
        total = self._total.get(chunk.sha256, -1)
        if chunk.offset != len(data) or not 0 <= total <= _MAX_KERNEL_BYTES or len(data) + len(chunk.data) > total:
            raise DataLoss(f"the chunks of kernel {chunk.sha256} do not fit together")
        data += chunk.data

    def _complete(self, sha256):
        data = bytes(self._bytes.get(sha256, b""))
        if len(data) != self._total.get(sha256, -1):
            raise DataLoss(f"kernel {sha256} ended after {len(data)} of {max(self._total.get(sha256, 0), 0)} bytes")
        return data

    def kernels(self):
        """{sha256: Kernel}."""
        kernels = {}
        for sha256 in self.request.sha256:
            data = self._complete(sha256)
            actual = hashlib.sha256(data).hexdigest()
            if actual != sha256:
                raise DataLoss(f"the bytes that arrived for kernel {sha256} have the SHA-256 {actual}")
            kernels[sha256] = Kernel(self._info[sha256], data, self._launch.get(sha256))
        return kernels

    def ptx(self):
        return self._complete(self.request.sha256[0]).decode()
