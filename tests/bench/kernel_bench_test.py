#!/usr/bin/env python3
"""kernel_bench without a GPU: the rounds on a device that answers from a script, limits, table, JSON and comparison."""

import importlib.machinery
import importlib.util
import json
import pathlib
import tempfile
import unittest

here = pathlib.Path(__file__).resolve().parent
loader = importlib.machinery.SourceFileLoader("kernel_bench", str(here / "kernel_bench"))
kernel_bench = importlib.util.module_from_spec(importlib.util.spec_from_loader("kernel_bench", loader))
loader.exec_module(kernel_bench)

import bench_report  # noqa: E402: kernel_bench sets the path
import graph_timing  # noqa: E402


class DriftingDevice:
    """A work's time is its name's in `us`; each graph that is timed makes every flush slower by `drift_us`."""

    def __init__(self, us, drift_us):
        self.us, self.drift_us, self.drift, self.timed, self.enqueued = us, drift_us, 0.0, [], []

    def single_us(self, works):
        return sum(self.us[work.name] for work in works)

    def graph(self, works):
        for work in works:
            work.enqueue()
        return tuple(work.name for work in works)

    def time_graphs(self, graphs):
        times = []
        for graph in graphs:
            self.timed.append(graph)
            times.append(sum(self.us[name] + (self.drift if name == "flush" else 0.0) for name in graph))
        self.drift += self.drift_us
        return times


def work(name, log=None):
    return graph_timing.Work(name, lambda: log.append(name) if log is not None else None)


class Rounds(unittest.TestCase):
    def test_flush_is_subtracted_though_it_drifts(self):
        device = DriftingDevice({"flush": 60.0, "a": 7.5, "b": 700.0, "slow": 9000.0}, drift_us=0.25)
        times = graph_timing.interleaved_us(device, [work("a"), work("b"), work("slow")], work("flush"), rounds=9)
        self.assertAlmostEqual(times["a"], 7.5)
        self.assertAlmostEqual(times["b"], 700.0)
        self.assertAlmostEqual(times["slow"], 9000.0)

    def test_every_round_times_every_work_beside_its_flushes(self):
        device = DriftingDevice({"flush": 60.0, "a": 7.0, "b": 70.0}, drift_us=0.0)
        graph_timing.interleaved_us(device, [work("a"), work("b")], work("flush"), rounds=2)
        names = ["".join(sorted(set(graph) - {"flush"})) or "-" for graph in device.timed]
        self.assertEqual(names, ["-", "a", "-", "b"] * 3)  # a warm-up and two rounds
        for alone, both in zip(device.timed[::2], device.timed[1::2]):
            self.assertEqual(len(both), 2 * len(alone))

    def test_slow_works_get_few_repeats_and_rounds(self):
        device = DriftingDevice({"flush": 60.0, "slow": 9000.0}, drift_us=0.0)
        graph_timing.interleaved_us(device, [work("slow")], work("flush"), rounds=9)
        self.assertEqual(len(device.timed), 2 * (1 + graph_timing.SLOW_ROUNDS))
        self.assertEqual(graph_timing.repeats_for(9060.0), graph_timing.MIN_REPEATS)
        self.assertEqual(graph_timing.repeats_for(0.0), graph_timing.MAX_REPEATS)

    def test_a_graph_holds_flush_and_work_in_turn(self):
        log = []
        device = DriftingDevice({"flush": 1000.0, "a": 1.0}, drift_us=0.0)
        graph_timing.interleaved_us(device, [work("a", log)], work("flush", log), rounds=1)
        self.assertEqual(log, ["flush", "a"] * 3 + ["flush"] * 3)


def row(m=1, us=12.0, **changes):
    return {"format": "int4", "group": 128, "n": 8448, "k": 6656, "m": m, "us": us, "floor_us": 6.9, "read_us": 10.0,
            "packed_mb": 29.0, "config": "mma_x", "split_k": 2, "peers": {"cublas": 36.0, "tinygemm": None}, **changes}


class Limits(unittest.TestCase):
    def limits(self, **changes):
        return dict(bench_report.limits(row(**changes), {}, 790.0))

    def test_follow_the_rows_of_x(self):
        for m, expected in ((1, 12.0), (4, 13.8), (8, 13.8), (16, 15.0), (24, 16.5), (32, 16.5), (48, 17.5)):
            self.assertAlmostEqual(self.limits(m=m)["R"], expected, msg=m)
        # 64 rows: the tensor cores take 2 * 64 * 8448 * 6656 / 790e12 s = 9.11 us.
        self.assertAlmostEqual(self.limits(m=64)["R"], 17.5)
        self.assertAlmostEqual(self.limits(m=64, read_us=5.0)["R"], 1.5 * 9.1106 + 2.5, places=3)

    def test_small_weights_have_none_relative_to_reading(self):
        self.assertNotIn("R", self.limits(packed_mb=9.9))

    def test_peers_bound_by_rows(self):
        self.assertEqual(self.limits(m=64)["cublas"], 36.0)
        self.assertAlmostEqual(self.limits(m=128)["0.8 cublas"], 28.8)
        self.assertAlmostEqual(self.limits(m=256)["1.05 cublas"], 37.8)
        self.assertEqual(self.limits(m=96), {})
        self.assertEqual(self.limits(m=1, peers={"cublas": None, "tinygemm": 11.0})["tinygemm"], 11.0)

    def test_anchors_scale_with_reading(self):
        anchors = {"8448x6656": {"prototype_read": 10.3, "prototype": {"1": 12.0, "16": 15.6}, "marlin": {"1": 17.1}}}
        at_1 = dict(bench_report.limits(row(read_us=10.3), anchors, 790.0))
        self.assertAlmostEqual(at_1["prototype"], 12.0)
        self.assertEqual(at_1["marlin"], 17.1)
        at_16 = dict(bench_report.limits(row(m=16, read_us=20.6), anchors, 790.0))
        self.assertAlmostEqual(at_16["prototype"], 2 * 15.6 * 0.95)
        self.assertNotIn("prototype", dict(bench_report.limits(row(group=64), anchors, 790.0)))

    def test_anchors_are_of_one_gpu(self):
        self.assertIn("5376x4096", bench_report.load_anchors("NVIDIA H200"))
        self.assertEqual(bench_report.load_anchors("NVIDIA A100"), {})


class Report(unittest.TestCase):
    def test_table_marks_what_misses_its_limit_and_shows_the_read_flush(self):
        rows = [row(us=11.5), row(m=8, us=14.0)]
        text = bench_report.table(rows, [row(us=9.0, read_us=8.0)], {}, 790.0)
        header, first, second = text.splitlines()
        self.assertEqual(header.split()[:3], ["format", "N", "x"])
        self.assertIn(" yes ", first)
        self.assertIn("3.13", first)  # cuBLAS over ours
        self.assertIn("1.12", first)  # after the read flush
        self.assertIn(" MISSED ", second)
        self.assertEqual(bench_report.summary(rows, {}, 790.0), ["1 of 2 cells keep all their limits"])

    def test_24_rows_that_cost_as_much_as_32_are_named(self):
        sentences = bench_report.summary([row(m=24, us=13.0), row(m=32, us=13.0), row(m=48, us=14.0), row(m=64, us=15.0)],
                                         {}, 790.0)
        self.assertEqual(sentences[1:], ["int4-g128 8448x6656 M=24 takes 13.00 us, M=32 13.00 us"])

    def test_compare_lists_what_moved_by_more_than_two_percent(self):
        old = bench_report.document("g", "abc", [row(us=10.0), row(m=4, us=10.0), row(m=8, us=10.0), row(m=96)])
        new = [row(us=10.19), row(m=4, us=10.3), row(m=8, us=9.0, config="mma_y"), row(m=16)]
        sentences = bench_report.compare(old, new)
        self.assertEqual(len(sentences), 3)
        self.assertTrue(sentences[0].startswith("int4-g128 8448x6656 M=4: 10.00 -> 10.30 us (+3.0%"), sentences[0])
        self.assertIn("was mma_x split 2, is mma_y split 2", sentences[1])
        self.assertEqual(sentences[2], "2 of 3 cells moved by more than 2% since abc; 1 are new, 1 were not measured again")

    def test_json_has_exactly_the_agreed_keys(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "new.json"
            kernel_bench.write_json(path, bench_report.document("g", "abc", [row(), row(m=2)]))
            document = json.loads(path.read_text())
        self.assertEqual(list(document), ["gpu", "commit", "rows"])
        self.assertEqual(list(document["rows"][0]), ["format", "group", "n", "k", "m", "us", "floor_us", "read_us",
                                                     "packed_mb", "config", "split_k", "peers"])
        self.assertEqual(list(document["rows"][0]["peers"]), ["cublas", "tinygemm"])
        self.assertEqual(document["rows"][1]["m"], 2)


class CommandLine(unittest.TestCase):
    def test_formats_become_qgemmctl_arguments(self):
        self.assertEqual(kernel_bench.parse_format("int4"), ["--format", "int4"])
        self.assertEqual(kernel_bench.parse_format("int6x2"), ["--format", "int6", "--scale-levels", "2"])
        self.assertEqual(kernel_bench.parse_format("int5-zint"), ["--format", "int5", "--zero", "int"])
        self.assertEqual(kernel_bench.parse_format("int4x2-zfloat")[2:], ["--scale-levels", "2", "--zero", "float"])
        self.assertEqual(kernel_bench.parse_format("int4x2a8-zint")[4:], ["--act-quant", "int8", "--zero", "int"])
        for wrong in ("int7", "int4-", "int4-zero", "x2", ""):
            with self.assertRaises(SystemExit, msg=wrong):
                kernel_bench.parse_format(wrong)

    def test_shapes_have_names(self):
        self.assertEqual(kernel_bench.parse_shapes("64x128,small,1024x6656"), ["64x128", "256x6656", "1024x6656"])
        self.assertEqual(len(kernel_bench.parse_shapes("all")), 7)
        with self.assertRaises(SystemExit):
            kernel_bench.parse_shapes("64*128")

    def test_launch_specs_get_the_apis_enumerators(self):
        spec = kernel_bench.api_form({"entry": "k", "arguments": [
            {"kind": "pointer", "role": "x", "read": True, "written": False, "alignment": 16, "name": "x"},
            {"kind": "tensor_map", "role": "weights", "element": "u64", "columns": 8, "rows": 0, "name": "map"},
            {"kind": "i64", "symbol": "ldy", "name": "ldy"},
            {"kind": "i32", "constant": 7, "name": "n"}]})
        self.assertEqual(spec["arguments"], [
            {"name": "x", "pointer": {"role": "POINTER_ROLE_X", "read": True, "written": False, "alignment": 16}},
            {"name": "map", "tensor_map": {"role": "POINTER_ROLE_WEIGHTS", "element": "ELEMENT_U64", "columns": 8, "rows": 0}},
            {"name": "ldy", "i64": {"symbol": "SYMBOL_LDY"}},
            {"name": "n", "i32": {"constant": 7}}])

    def test_picks_are_grouped_by_format_and_shape(self):
        result = {"group_size": 128, "n": 64, "k": 128, "m_bucket": 1}
        picks = [("int4", result), ("int4", {**result, "m_bucket": 2}), ("int5", result)]
        self.assertEqual([(word, len(results)) for word, results in kernel_bench.grouped(picks)], [("int4", 2), ("int5", 1)])


if __name__ == "__main__":
    unittest.main()
