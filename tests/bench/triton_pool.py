#!/usr/bin/env python3
"""Compiles a space of Triton kernels on a pool of processes: what tune_bench.py puts beside an exhaustive tuning.

    python3 tests/bench/triton_pool.py --processes 16 --seconds 60 --out triton.json

The kernel is a plain W4A16 tile GEMM with a split of K, the space that of the export stack for INT4 at bucket 64:
tiles of 8 to 64 rows by 32 to 128 columns, 4 or 8 warps, 1 to 3 stages, splits 1, 2, 4, 8 and 16, of which Triton
compiles one kernel each because the split is a constant there: 288 (configs with more stages than K steps left out).
Compiles for sm_90 without a GPU, Triton's cache in an empty folder; nothing is run. Without Triton it says so and ends
with 0 and {"triton_skipped": why}.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import shutil
import sys
import tempfile
import time

KERNEL = '''
import triton
import triton.language as tl


@triton.jit
def w4a16(x, w, scales, y, M, N, K, stride_xm, stride_wn, stride_sn, stride_ym, GROUP: tl.constexpr,
          BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr):
    pid_n = tl.program_id(0)
    pid_m = tl.program_id(1)
    pid_k = tl.program_id(2)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    steps = tl.cdiv(K, BLOCK_K * SPLIT_K)
    for step in range(0, steps):
        k = (pid_k * steps + step) * BLOCK_K + tl.arange(0, BLOCK_K)
        a = tl.load(x + rows[:, None] * stride_xm + k[None, :], mask=(rows[:, None] < M) & (k[None, :] < K), other=0.0)
        packed = tl.load(w + columns[None, :] * stride_wn + (k // 2)[:, None],
                         mask=(columns[None, :] < N) & (k[:, None] < K), other=0)
        codes = (packed >> ((k % 2) * 4)[:, None]) & 15
        scale = tl.load(scales + columns[None, :] * stride_sn + (k // GROUP)[:, None],
                        mask=(columns[None, :] < N) & (k[:, None] < K), other=0.0)
        b = ((codes.to(tl.float32) - 8.0) * scale.to(tl.float32)).to(tl.bfloat16)
        acc += tl.dot(a, b)
    at = y + rows[:, None] * stride_ym + columns[None, :]
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    if SPLIT_K == 1:
        tl.store(at, acc.to(tl.bfloat16), mask=mask)
    else:
        tl.atomic_add(at, acc, mask=mask)
'''
BLOCK_K = 256
K = 4096


def space():
    configs = []
    for split in (1, 2, 4, 8, 16):
        for block_m in (8, 16, 32, 64):
            for block_n in (32, 64, 128):
                for warps in (4, 8):
                    for stages in (1, 2, 3):
                        if stages <= K // BLOCK_K // split:
                            configs.append({"split": split, "block_m": block_m, "block_n": block_n, "warps": warps,
                                            "stages": stages})
    return configs


def start_worker(folder):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["TRITON_CACHE_DIR"] = f"{folder}/cache-{os.getpid()}"
    sys.path.insert(0, folder)
    import w4a16_kernel  # noqa: F401  Triton's import is part of a worker's start


def compile_one(config):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    import w4a16_kernel
    begin = sum(os.times()[:4])  # ptxas is a child
    pointers = {"x": "*bf16", "w": "*u8", "scales": "*bf16", "y": "*bf16" if config["split"] == 1 else "*fp32"}
    integers = ("M", "N", "K", "stride_xm", "stride_wn", "stride_sn", "stride_ym")
    constants = {"GROUP": 128, "BLOCK_M": config["block_m"], "BLOCK_N": config["block_n"], "BLOCK_K": BLOCK_K,
                 "SPLIT_K": config["split"]}
    signature = {**pointers, **{name: "i32" for name in integers}, **{name: "constexpr" for name in constants}}
    names = list(signature)
    source = ASTSource(fn=w4a16_kernel.w4a16, signature=signature,
                       constexprs={(names.index(name),): value for name, value in constants.items()},
                       attrs={(i,): [["tt.divisibility", 16]] for i in range(len(pointers) + len(integers))})
    try:
        triton.compile(source, target=GPUTarget("cuda", 90, 32),
                       options={"num_warps": config["warps"], "num_stages": config["stages"]})
        error = None
    except Exception as caught:  # a config that Triton refuses is a result here
        error = f"{type(caught).__name__}: {caught}"[:200]
    return sum(os.times()[:4]) - begin, error


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60, help="stop after so long (default 60)")
    parser.add_argument("--out", help="file to write the JSON to")
    args = parser.parse_args()
    out = {}
    try:
        import triton
        out["triton_version"] = triton.__version__
    except ImportError as missing:
        out["triton_skipped"] = f"Triton is not installed for {sys.executable}: {missing}"
    if "triton_skipped" not in out:
        folder = tempfile.mkdtemp(prefix="qgemm-triton-")
        (pathlib.Path(folder) / "w4a16_kernel.py").write_text(KERNEL)
        configs = space()
        begin = time.monotonic()
        cpu_s, errors, done = 0, [], 0
        pool = concurrent.futures.ProcessPoolExecutor(args.processes, multiprocessing.get_context("spawn"), start_worker,
                                                      (folder,))
        futures = [pool.submit(compile_one, config) for config in configs]
        try:
            for future in concurrent.futures.as_completed(futures, timeout=args.seconds):
                seconds, error = future.result()
                cpu_s += seconds
                done += 1
                errors += [error] if error else []
        except concurrent.futures.TimeoutError:
            out["triton_out_of_time"] = f"{done} of {len(configs)} kernels in {args.seconds} s"
        out["triton_pool_s"] = time.monotonic() - begin
        out["triton_processes"] = args.processes
        out["triton_kernels"] = done
        out["triton_kernels_asked"] = len(configs)
        out["triton_compile_cpu_s"] = cpu_s
        out["triton_refused"] = len(errors)
        if errors:
            out["triton_first_refusal"] = errors[0]
        for process in list(pool._processes.values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        shutil.rmtree(folder, ignore_errors=True)
    text = json.dumps(out, indent=1)
    if args.out:
        pathlib.Path(args.out).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
