#!/usr/bin/env python3
"""Times tuning itself: cold, a new shape, cached kernels, the 44 pairs, asking again after a restart, whole models.

    python3 tests/bench/tune_bench.py --out tune_bench.json [--parts single,pairs,models,same,triton,faults] [--seconds 300]

Starts a private qgemmd with an empty data directory for each cold figure, NVRTC's own disk cache off, and runs qgemmctl
against it. Needs nothing but the programs (--bin DIR; default: beside this bundle, else build/release/bin) and Python.
Seconds are wall time of the whole qgemmctl command, begun as soon as the daemon answers; its compile workers start with
the first kernels, so their start is inside. JSON keys (medians of --repeat runs where several are made):

  exhaustive_cold_s      int4 g128 5376x4096, bucket 64, every candidate, nothing stored
  balanced_cold_s        the same, effort balanced
  balanced_cached_s      the same again with --retune: kernels stored, timings not used
  balanced_new_shape_s   8448x6656, bucket 64, in the store of balanced_cold
  pairs44_cold_s         all pairs of pairs44.json, balanced, nothing stored, the four formats at once
  warm_ms                the same after a restart of the daemon: milliseconds the daemon needs, nothing compiled or timed
  pairs44_cached_s       the same with --retune: kernels stored, so timing alone
  pairs44_gpu_busy_share seconds the GPU process worked over the seconds of pairs44_cached_s; ..._nvml: NVML's own
                         utilization during them, where nvidia-smi is
  gemma27b_cold_s        Gemma-3-27B, all layers, buckets 1 to 64, balanced, nothing stored; gemma27b_cached_s: --retune
  llama8b_s, llama70b_s  then these models in the same store; *_m256_s, *_m1024_s, *_m4096_s: larger buckets
  same_candidates        balanced tunings with one worker, with all, and with stored kernels: the same candidates were
  same_cubins            tried, byte-identical kernels made, and the picks differ by ...
  picks_within           ... this factor at most, raced against each other once more in one process
  triton_pool_s          triton_pool.py on as many processes as the host has cores
  faults_passed          bin/gpu_reference_test, its GpuFault cases: illegal address, endless loop, wrong results, writes past the end
A part that --seconds leaves no time for is left out and listed in skipped.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SINGLE = ["--format", "int4", "--group-size", "128", "--act", "bf16", "--m", "64"]


def program_folder(given):
    folders = [pathlib.Path(given)] if given else [HERE.parent.parent / "bin", HERE.parent.parent / "build/release/bin"]
    for folder in folders:
        if (folder / "qgemmd").exists():
            return folder
    sys.exit("tune_bench: qgemmd is not in " + ", ".join(map(str, folders)) + ": say where with --bin")


class Daemon:
    """A private qgemmd; its socket and data are in a folder of their own."""

    def __init__(self, bin_folder, device, folder=None, more=()):
        self.bin = bin_folder
        self.device = device
        self.owns_folder = folder is None
        self.folder = folder or tempfile.mkdtemp(prefix="qgemm-bench-")
        self.address = f"unix:{self.folder}/q.sock"
        self.log = open(f"{self.folder}/log", "ab")
        begin = time.monotonic()
        self.process = subprocess.Popen(
            [self.bin / "qgemmd", "--listen", self.address, "--data-dir", f"{self.folder}/data", "--device", device,
             "--lock-dir", self.folder, *more],
            env={**os.environ, "CUDA_CACHE_DISABLE": "1"}, stdout=self.log, stderr=self.log)
        while True:
            answer = self.call("device", check=False)
            if answer is not None:
                break
            if self.process.poll() is not None or time.monotonic() - begin > 90:
                sys.stderr.write(open(f"{self.folder}/log").read())
                sys.exit("tune_bench: qgemmd did not start")
            time.sleep(0.02)
        self.start_s = time.monotonic() - begin
        self.description = answer

    def command(self, *arguments):
        return [str(self.bin / "qgemmctl"), "--server", self.address, "--output", "json", *arguments]

    def call(self, *arguments, check=True):
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True)
        if done.returncode != 0:
            if check:
                sys.exit(f"tune_bench: {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()}")
            return None
        return json.loads(done.stdout)

    def tune(self, *arguments):
        begin = time.monotonic()
        answer = self.call("tune", *arguments)
        return time.monotonic() - begin, answer

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=40)
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        if self.process.poll() is None:
            self.stop()
        if self.owns_folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def note(text):
    print(text, flush=True)


def tune_text(name, seconds, answer):
    stats = answer["stats"]
    note(f"{name:<28} {seconds:7.3f} s   daemon {stats['wall_s']:7.3f} s, {stats['compiles']} compiles, "
         f"{stats['timings']} timings")


def single_shape(args, bin_folder, out):
    """Cold exhaustive and balanced, cached, and a new shape."""
    times = {"exhaustive_cold_s": [], "balanced_cold_s": [], "balanced_cached_s": [], "balanced_new_shape_s": [],
             "exhaustive_new_shape_s": [], "daemon_start_s": []}

    def run(daemon, name, *arguments):
        seconds, answer = daemon.tune(*SINGLE, *arguments)
        times[name].append(seconds)
        tune_text(name, seconds, answer)
        return answer

    for _ in range(args.repeat):
        with Daemon(bin_folder, args.device) as daemon:
            times["daemon_start_s"].append(daemon.start_s)
            answer = run(daemon, "exhaustive_cold_s", "--shape", "5376x4096", "--effort", "exhaustive")
            out["exhaustive_candidates"] = answer["results"][0]["candidates"]
            out["exhaustive_time_us"] = answer["results"][0]["time_us"]
            run(daemon, "exhaustive_new_shape_s", "--shape", "8448x6656", "--effort", "exhaustive")
            out["gpu"] = (daemon.description.get("device") or {}).get("product_name")
            out["compile_workers"] = daemon.description["compile_workers"]
        with Daemon(bin_folder, args.device) as daemon:
            answer = run(daemon, "balanced_cold_s", "--shape", "5376x4096")
            out["balanced_time_us"] = answer["results"][0]["time_us"]
            run(daemon, "balanced_cached_s", "--shape", "5376x4096", "--retune")
            run(daemon, "balanced_new_shape_s", "--shape", "8448x6656")
    for name, values in times.items():
        out[name] = statistics.median(values)
        out[name + "_all"] = values


def pair_commands(daemon, formats):
    for f in formats:
        yield f, daemon.command("tune", "--format", f["format"], "--group-size", str(f["group_size"]), "--zero", f["zero"],
                                "--act", "bf16", "--shape", ",".join(f["shapes"]), "--m", ",".join(map(str, f["m"])))


def tune_pairs(daemon, formats):
    """All formats at once, as clients of their own; returns seconds, answers and what no kernel serves."""
    begin = time.monotonic()
    running = [(f, subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
               for f, c in pair_commands(daemon, formats)]
    answers, missing = [], []
    for f, process in running:
        stdout, stderr = process.communicate()
        answer = json.loads(stdout) if stdout.startswith("{") else {}
        results = [r for r in answer.get("results", []) if r["source"] is not None]
        if not results:
            missing.append({"format": f["format"], "why": stderr.strip().split("\n")[0]})
            continue
        answers.append(answer)
    return time.monotonic() - begin, answers, missing


def all_pairs(args, bin_folder, out):
    formats = json.loads((HERE / "pairs44.json").read_text())["formats"]
    folder = tempfile.mkdtemp(prefix="qgemm-bench-")
    try:
        with Daemon(bin_folder, args.device, folder) as daemon:
            seconds, answers, missing = tune_pairs(daemon, formats)
            workers = daemon.description["compile_workers"]
            pairs_timed_alone(args, bin_folder, out, daemon, formats)
        stats = [a["stats"] for a in answers]
        out["pairs44_cold_s"] = seconds
        out["pairs44_pairs"] = sum(len(a["results"]) for a in answers)
        out["pairs44_missing"] = missing
        out["pairs44_compiles"] = sum(s["compiles"] for s in stats)
        out["pairs44_timings"] = sum(s["timings"] for s in stats)
        out["pairs44_gpu_busy_s"] = sum(s.get("gpu_busy_s", 0) for s in stats)
        out["pairs44_compile_cpu_s"] = sum(s.get("compile_cpu_s", 0) for s in stats)
        out["pairs44_workers_busy"] = out["pairs44_compile_cpu_s"] / (workers * seconds)
        note(f"{'pairs44_cold_s':<28} {seconds:7.3f} s   {out['pairs44_pairs']} of 44 pairs, "
             f"{out['pairs44_compiles']} compiles, {out['pairs44_timings']} timings, GPU "
             f"{out['pairs44_gpu_busy_s']:.2f} s")
        for m in missing:
            note(f"  left out: {m['format']}: {m['why']}")
        with Daemon(bin_folder, args.device, folder) as daemon:
            command_s, again, _ = tune_pairs(daemon, formats)
        stats = [a["stats"] for a in again]
        out["warm_ms"] = 1e3 * sum(s["wall_s"] for s in stats)
        out["warm_command_ms"] = 1e3 * command_s
        out["warm_compiles"] = sum(s["compiles"] for s in stats)
        out["warm_timings"] = sum(s["timings"] for s in stats)
        note(f"{'warm_ms':<28} {out['warm_ms']:7.1f} ms  {out['warm_compiles']} compiles, {out['warm_timings']} timings, "
             f"commands {out['warm_command_ms']:.0f} ms")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class NvmlShare:
    """Mean GPU utilization by nvidia-smi while it is open; None where there is none."""

    def __enter__(self):
        try:
            self.process = subprocess.Popen(["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits",
                                             "-lms", "100"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            self.process = None
        return self

    def __exit__(self, *unused):
        self.share = None
        if self.process is None:
            return
        self.process.terminate()
        values = [int(word) for word in self.process.communicate()[0].split() if word.isdigit()]
        if values:
            self.share = statistics.mean(values) / 100


def pairs_timed_alone(args, bin_folder, out, daemon, formats):
    """The timing phase by itself: the kernels are stored, the timings are made anew."""
    with NvmlShare() as nvml:
        begin = time.monotonic()
        running = [subprocess.Popen(c + ["--retune"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                   for _, c in pair_commands(daemon, formats)]
        answers = [json.loads(p.communicate()[0] or "{}") for p in running]
        seconds = time.monotonic() - begin
    stats = [a["stats"] for a in answers if "stats" in a]
    out["pairs44_cached_s"] = seconds
    out["pairs44_cached_compiles"] = sum(s["compiles"] for s in stats)
    out["pairs44_gpu_busy_share"] = sum(s.get("gpu_busy_s", 0) for s in stats) / seconds
    out["pairs44_gpu_busy_share_nvml"] = nvml.share
    note(f"{'pairs44_cached_s':<28} {seconds:7.3f} s   GPU process busy {out['pairs44_gpu_busy_share']:.0%}, by NVML "
         f"{nvml.share if nvml.share is None else format(nvml.share, '.0%')}")


def models(args, bin_folder, out):
    """Whole models in one store, one after the other."""
    folder = bin_folder.parent / "models"
    if not folder.exists():
        folder = HERE.parent.parent / "deploy" / "models"
    runs = [("gemma27b_cold_s", "gemma-3-27b-text-config", "1,2,4,8,16,32,64", []),
            ("gemma27b_cached_s", "gemma-3-27b-text-config", "1,2,4,8,16,32,64", ["--retune"]),
            ("llama8b_s", "llama-3.1-8b-config", "1,2,4,8,16,32,64", []),
            ("llama70b_s", "llama-3.1-70b-config", "1,2,4,8,16,32,64", [])]
    for m in (256, 1024, 4096):
        runs += [(f"{short}_m{m}_s", model, str(m), [])
                 for short, model in (("llama8b", "llama-3.1-8b-config"), ("gemma27b", "gemma-3-27b-text-config"),
                                      ("llama70b", "llama-3.1-70b-config"))]
    with Daemon(bin_folder, args.device) as daemon:
        for name, model, m, more in runs:
            if args.left() < 10:
                args.skip(name)
                continue
            seconds, answer = daemon.tune("--model", str(folder / f"{model}.json"), "--format", "int4", "--group-size",
                                          "128", "--m", m, *more)
            out[name] = seconds
            out[name[:-2] + "_stats"] = {**answer["stats"], "results": len(answer["results"])}
            tune_text(name, seconds, answer)


def tried(daemon):
    """Candidates, kernels and the pick of the single shape."""
    shape = ["--format", "int4", "--group-size", "128", "--act", "bf16", "--m", "64", "--shape", "5376x4096"]
    explained = daemon.call("explain", *shape)["results"][0]["tried"]
    kernels = {k["config"]: k["sha256"] for k in daemon.call("kernel", "ls")["kernels"]}
    center = {t["candidate"]: t["center_us"] for t in explained}
    pick = next(t["candidate"] for t in explained if t["picked"])
    return center, kernels, pick


def raced(daemon, picks):
    """The largest over the smallest time of some candidates of the single shape, all in one race."""
    if len(picks) == 1:
        return 1.0
    only = "^(" + "|".join(sorted(picks)) + ")$"  # names have no characters that mean something else
    daemon.tune(*SINGLE, "--shape", "5376x4096", "--retune", "--only", only)
    center, _, _ = tried(daemon)
    return max(center[pick] for pick in picks) / min(center[pick] for pick in picks)


def same_search(args, bin_folder, out):
    """One worker, all workers, stored kernels: is the search the same?"""
    runs = {}
    for name, more in (("one_worker", ["--workers", "1"]), ("all_workers", [])):
        with Daemon(bin_folder, args.device, more=more) as daemon:
            seconds, answer = daemon.tune(*SINGLE, "--shape", "5376x4096")
            out[f"same_{name}_s"] = seconds
            tune_text(f"same_{name}_s", seconds, answer)
            runs[name] = tried(daemon)
            if name == "all_workers":
                daemon.tune(*SINGLE, "--shape", "5376x4096", "--retune")
                runs["stored_kernels"] = tried(daemon)
                out["picks_within"] = raced(daemon, {pick for _, _, pick in runs.values()})
    first = runs["one_worker"]
    tried_in_all = [{c for c, us in center.items() if us is not None} for center, _, _ in runs.values()]
    out["same_candidates"] = all(t == tried_in_all[0] for t in tried_in_all)
    out["same_candidates_count"] = len(tried_in_all[0])
    out["same_cubins"] = all(kernels == first[1] for _, kernels, _ in runs.values())
    out["same_cubins_count"] = len(first[1])
    out["same_picks"] = {name: pick for name, (_, _, pick) in runs.items()}
    note(f"{'same search':<28} candidates {out['same_candidates']} ({out['same_candidates_count']}), cubins "
         f"{out['same_cubins']} ({out['same_cubins_count']}), picks within {out['picks_within']:.4f}")


def triton_pool(args, bin_folder, out):
    """Beside the exhaustive run."""
    bound = max(10, min(60, args.left() - 5))
    done = subprocess.run([sys.executable, HERE / "triton_pool.py", "--processes", str(os.cpu_count()), "--seconds",
                           f"{bound:.0f}"], capture_output=True, text=True)
    try:
        result = json.loads(done.stdout)
    except ValueError:
        result = {"triton_skipped": (done.stderr.strip().split("\n") or [""])[-1]}
    out.update(result)
    note(f"{'triton_pool_s':<28} " + (result.get("triton_skipped") or
                                     f"{result['triton_pool_s']:7.3f} s   {result['triton_kernels']} kernels, "
                                     f"{result['triton_compile_cpu_s']:.0f} s of CPU, {result['triton_refused']} refused"))


def faults(args, bin_folder, out):
    """The GPU tests of bad candidates: each costs only itself."""
    program = bin_folder / "gpu_reference_test"
    if not program.exists():
        args.skip("faults: no gpu_reference_test in " + str(bin_folder))
        return
    done = subprocess.run([program, "--gtest_filter=GpuFault*"], capture_output=True, text=True, timeout=max(30, args.left()))
    out["faults_passed"] = done.returncode == 0
    out["faults_cases"] = [line.split("] ")[1].split(" (")[0] for line in done.stdout.split("\n") if "[       OK ]" in line]
    note(f"{'faults_passed':<28} {out['faults_passed']} ({len(out['faults_cases'])} cases)")


PARTS = {"single": single_shape, "pairs": all_pairs, "models": models, "same": same_search, "triton": triton_pool,
         "faults": faults}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", help="folder of qgemmd and qgemmctl")
    parser.add_argument("--device", default="auto", help="as qgemmd's --device")
    parser.add_argument("--repeat", type=int, default=3, help="runs of the single-shape part (default 3)")
    parser.add_argument("--parts", default=",".join(PARTS), help="which of " + ", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=300, help="no part begins after so long (default 300)")
    parser.add_argument("--out", help="file to write the JSON to")
    args = parser.parse_args()
    begin = time.monotonic()
    out = {"skipped": []}
    args.left = lambda: args.seconds - (time.monotonic() - begin)
    args.skip = lambda what: (out["skipped"].append(what), note(f"left out: {what}"))
    bin_folder = program_folder(args.bin)
    for name in args.parts.split(","):
        if name not in PARTS:
            parser.error(f"--parts: there is no part '{name}'; there are {', '.join(PARTS)}")
        if args.left() <= 0:
            args.skip(name)
            continue
        try:
            PARTS[name](args, bin_folder, out)
        except (Exception, SystemExit) as failure:  # the other parts' figures are not lost
            out.setdefault("failed", {})[name] = str(failure)
            note(f"{name} failed: {failure}")
        if args.out:
            pathlib.Path(args.out).write_text(json.dumps(out, indent=1) + "\n")
    text = json.dumps(out, indent=1)
    if args.out:
        pathlib.Path(args.out).write_text(text + "\n")
    print(text)
    return 1 if out.get("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
