#!/usr/bin/env python3
"""Times tuning itself: cold, a new shape, cached kernels, the 44 pairs, and asking again after a restart.

    python3 tests/bench/tune_bench.py --out tune_bench.json

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

    def __init__(self, bin_folder, device, folder=None):
        self.bin = bin_folder
        self.device = device
        self.owns_folder = folder is None
        self.folder = folder or tempfile.mkdtemp(prefix="qgemm-bench-")
        self.address = f"unix:{self.folder}/q.sock"
        self.log = open(f"{self.folder}/log", "ab")
        begin = time.monotonic()
        self.process = subprocess.Popen(
            [self.bin / "qgemmd", "--listen", self.address, "--data-dir", f"{self.folder}/data", "--device", device,
             "--lock-dir", self.folder],
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", help="folder of qgemmd and qgemmctl")
    parser.add_argument("--device", default="auto", help="as qgemmd's --device")
    parser.add_argument("--repeat", type=int, default=3, help="runs of the single-shape part (default 3)")
    parser.add_argument("--skip-pairs", action="store_true", help="only the single shape")
    parser.add_argument("--out", help="file to write the JSON to")
    args = parser.parse_args()
    bin_folder = program_folder(args.bin)
    out = {}
    single_shape(args, bin_folder, out)
    if not args.skip_pairs:
        all_pairs(args, bin_folder, out)
    text = json.dumps(out, indent=1)
    if args.out:
        pathlib.Path(args.out).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
