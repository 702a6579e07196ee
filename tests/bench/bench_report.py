"""Rows of kernel_bench: their JSON, their table, what they must reach, and what moved since an older run."""

import json
import pathlib

MOVED = 0.02  # a cell moves when its time changes by more
FULL_MIB = 10e6  # bytes of packed weights from which the limits relative to R hold


def key_of(row):
    return (row["format"], row["group"], row["n"], row["k"], row["m"])


def cell_name(row):
    group = "channel" if row["group"] == 0 else f"g{row['group']}"
    return f"{row['format']}-{group} {row['n']}x{row['k']} M={row['m']}"


def read_limit(m, read_us, tensor_us):
    """Microseconds that a kernel of m rows may take beside a pure read of the same bytes; None above 64 rows."""
    if m <= 1:
        return 1.15 * read_us + 0.5
    if m <= 8:
        return 1.2 * read_us + 1.8
    if m <= 16:
        return 1.3 * read_us + 2.0
    if m <= 32:
        return 1.45 * read_us + 2.0
    if m <= 64:
        return 1.5 * max(read_us, tensor_us) + 2.5
    return None


def limits(row, anchors, tflops):
    """[(name, us)]: what this row must not exceed, from its own run and, for the GPU they are of, from `anchors`."""
    m, read_us, peers = row["m"], row["read_us"], row["peers"]
    tensor_us = 2.0 * m * row["n"] * row["k"] / tflops * 1e-6
    found = []
    allowed = read_limit(m, read_us, tensor_us)
    if allowed is not None and row["packed_mb"] * 1e6 >= FULL_MIB:
        found.append(("R", allowed))
    if m <= 64:
        found += [(name, us) for name, us in peers.items() if us is not None]
    elif m == 128 and peers["cublas"] is not None:
        found.append(("0.8 cublas", 0.8 * peers["cublas"]))
    elif m >= 256 and peers["cublas"] is not None:
        found.append(("1.05 cublas", 1.05 * peers["cublas"]))
    anchor = anchors.get(f"{row['n']}x{row['k']}") if (row["format"], row["group"]) == ("int4", 128) else None
    if anchor:
        marlin = anchor.get("marlin", {}).get(str(m))
        if marlin is not None and m <= 64:
            found.append(("marlin", marlin))
        prototype = anchor.get("prototype", {}).get(str(m))
        if prototype is not None:
            found.append(("prototype", prototype / anchor["prototype_read"] * read_us * (0.95 if m >= 16 else 1.0)))
    return found


def load_anchors(gpu):
    """Figures measured elsewhere on the same kind of GPU; {} for another one."""
    path = pathlib.Path(__file__).resolve().parent / "anchors.json"
    anchors = json.loads(path.read_text())
    return anchors["shapes"] if anchors["gpu"] == gpu else {}


def ratio(a, b):
    return f"{a / b:.2f}" if a is not None and b else "-"


def text(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


COLUMNS = (("format", 0), ("N x K", 1), ("M", 1), ("MB", 1), ("floor us", 1), ("R us", 1), ("best us", 1), ("/ R", 1),
           ("limit us", 1), ("by", 0), ("ok", 0), ("cuBLAS us", 1), ("x", 1), ("tinygemm us", 1), ("x", 1),
           ("read flush R us", 1), ("best us", 1), ("/ R", 1), ("split", 1), ("config", 0))


def table(rows, read_flush_rows, anchors, tflops):
    """Text: one line per row of the memset flush with the read flush's figures beside them, aligned."""
    after_read = {key_of(row): row for row in read_flush_rows}
    lines = [[name for name, _ in COLUMNS]]
    for row in rows:
        bounds = limits(row, anchors, tflops)
        name, allowed = min(bounds, key=lambda bound: bound[1]) if bounds else ("", None)
        warm = after_read.get(key_of(row))
        group = "channel" if row["group"] == 0 else f"g{row['group']}"
        cublas, tinygemm = row["peers"]["cublas"], row["peers"]["tinygemm"]
        lines.append([
            f"{row['format']}-{group}", f"{row['n']}x{row['k']}", str(row["m"]), text(row["packed_mb"], 1),
            text(row["floor_us"]), text(row["read_us"]), text(row["us"]), ratio(row["us"], row["read_us"]),
            text(allowed), name, "" if allowed is None else "yes" if row["us"] <= allowed else "MISSED",
            text(cublas), ratio(cublas, row["us"]), text(tinygemm), ratio(tinygemm, row["us"]),
            text(warm and warm["read_us"]), text(warm and warm["us"]), ratio(warm and warm["us"], warm and warm["read_us"]),
            str(row["split_k"]), row["config"]])
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.rjust(width) if right else cell.ljust(width)
                  for cell, width, (_, right) in zip(line, widths, COLUMNS)).rstrip() for line in lines) + "\n"


def summary(rows, anchors, tflops):
    """Sentences: how many rows keep their limits, and which rows of few tokens cost more than ones of more."""
    checked = missed = 0
    for row in rows:
        bounds = limits(row, anchors, tflops)
        checked += bool(bounds)
        missed += any(row["us"] > allowed for _, allowed in bounds)
    sentences = [f"{checked - missed} of {checked} cells keep all their limits"]
    by_key = {key_of(row): row for row in rows}
    for row in rows:
        larger = {24: 32, 48: 64}.get(row["m"])
        other = by_key.get((*key_of(row)[:4], larger))
        if other is not None and row["us"] >= other["us"]:
            sentences.append(f"{cell_name(row)} takes {row['us']:.2f} us, M={larger} {other['us']:.2f} us")
    return sentences


def document(gpu, commit, rows):
    return {"gpu": gpu, "commit": commit, "rows": rows}


def compare(baseline, rows):
    """Sentences: every cell whose time moved by more than 2 % since the baseline document, slowest first."""
    before = {key_of(row): row for row in baseline["rows"]}
    moved, only_new = [], 0
    for row in rows:
        old = before.pop(key_of(row), None)
        if old is None:
            only_new += 1
            continue
        change = row["us"] / old["us"] - 1.0
        if abs(change) > MOVED:
            configs = "" if (old["config"], old["split_k"]) == (row["config"], row["split_k"]) else (
                f"; was {old['config']} split {old['split_k']}, is {row['config']} split {row['split_k']}")
            moved.append((change, f"{cell_name(row)}: {old['us']:.2f} -> {row['us']:.2f} us ({change:+.1%}; R "
                                  f"{old['read_us']:.2f} -> {row['read_us']:.2f}){configs}"))
    sentences = [sentence for _, sentence in sorted(moved, key=lambda pair: -pair[0])]
    common = len(rows) - only_new
    sentences.append(f"{len(moved)} of {common} cells moved by more than {MOVED:.0%} since {baseline['commit']}; "
                     f"{only_new} are new, {len(before)} were not measured again")
    return sentences
