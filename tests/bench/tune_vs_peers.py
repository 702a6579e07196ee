#!/usr/bin/env python3
"""Times cuBLAS bf16 and tinygemm beside a tuning's picks, on the same GPU by the daemon's method.

Reads what `qgemmctl --output json tune ...` printed and, for each measured (N, K, bucket), times
  cublas    X[M,K] @ W[N,K]^T in bf16 through torch.mm
  tinygemm  torch._weight_int4pack_mm with the same group size (int4, bf16 only)
in a CUDA graph of n x {read 256 MB, event, kernel, event}; microseconds, median of n. M is the bucket.
Prints a table, and with --json FILE writes {"gpu", "rows": [{n, k, m, us, cublas_us, tinygemm_us, ...}]}.

Needs PyTorch with CUDA. Source of the method: design notes on timing; CUDA driver API, cuEventRecordWithFlags.
"""

import argparse
import ctypes
import json
import statistics
import sys

import torch

CU_EVENT_RECORD_EXTERNAL = 1
SAMPLES = 20
driver = ctypes.CDLL("libcuda.so.1")


def check(result, what):
    if result:
        raise RuntimeError(f"{what} failed with CUDA error {result}")


class Timer:
    """Median cold-L2 time of a function that only enqueues work on the current stream."""

    def __init__(self):
        self.flush = torch.ones(64 << 20, dtype=torch.int32, device="cuda")
        self.sink = torch.zeros((), dtype=torch.int64, device="cuda")
        self.events = []
        for _ in range(2 * SAMPLES):
            event = ctypes.c_void_p()
            check(driver.cuEventCreate(ctypes.byref(event), 0), "cuEventCreate")
            self.events.append(event)

    def _record(self, event):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        check(driver.cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL), "cuEventRecordWithFlags")

    def median_us(self, work):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                work()
                torch.sum(self.flush, dim=0, out=self.sink)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(SAMPLES):
                torch.sum(self.flush, dim=0, out=self.sink)
                self._record(self.events[2 * i])
                work()
                self._record(self.events[2 * i + 1])
        graph.replay()  # warm-up
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        times = []
        for i in range(SAMPLES):
            ms = ctypes.c_float()
            check(driver.cuEventElapsedTime(ctypes.byref(ms), self.events[2 * i], self.events[2 * i + 1]),
                  "cuEventElapsedTime")
            times.append(ms.value * 1e3)
        return statistics.median(times)


def cublas_us(timer, n, k, m):
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    y = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return timer.median_us(lambda: torch.mm(x, w.t(), out=y))


def tinygemm_us(timer, n, k, m, group):
    """None where tinygemm does not serve the shape or group."""
    if n % 8 or k % 128 or group not in (32, 64, 128, 256):
        return None
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    codes = torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack(codes, 8)
    scales = torch.rand(k // group, n, 2, device="cuda", dtype=torch.bfloat16)
    return timer.median_us(lambda: torch._weight_int4pack_mm(x, packed, group, scales))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tune_json", help="what qgemmctl --output json tune printed")
    parser.add_argument("--json", help="file to write the rows to")
    args = parser.parse_args()
    with open(args.tune_json) as f:
        results = json.load(f)["results"]
    timer = Timer()
    rows = []
    print(f"{'N x K':>14} {'bucket':>6} {'qgemm us':>9} {'cuBLAS us':>9} {'ratio':>6} {'tinygemm us':>11} {'ratio':>6}")
    for r in results:
        if r["source"] != "MEASURED":
            continue
        n, k, m, us = r["n"], r["k"], r["m_bucket"], r["time_us"]
        cublas = cublas_us(timer, n, k, m)
        tiny = tinygemm_us(timer, n, k, m, r["group_size"]) if r["format"] == "int4" else None
        rows.append({"n": n, "k": k, "m": m, "us": us, "cublas_us": cublas, "tinygemm_us": tiny,
                     "config": r["config"], "split_k": r["split_k"]})
        tiny_text = f"{tiny:11.2f} {tiny / us:5.2f}x" if tiny is not None else f"{'-':>11} {'-':>6}"
        print(f"{n:>7}x{k:<6} {m:>6} {us:9.2f} {cublas:9.2f} {cublas / us:5.2f}x {tiny_text}", flush=True)
    if not rows:
        sys.exit("no measured result in " + args.tune_json)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"gpu": torch.cuda.get_device_name(), "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
