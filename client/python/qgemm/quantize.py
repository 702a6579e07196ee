"""Numbers to codes and back: round-to-nearest quantization, and what a code means. NumPy or PyTorch, as `packing`."""

import dataclasses

from qgemm import arrays
from qgemm.types import as_format

_STEP_WEIGHTS = 256


def _spread(xp, plane, count, k):
    """[N, some] -> [N, k], each number for `count` successive k."""
    return xp.repeat(plane, count)[:, :k]


def _levels(xp, numbers, codes, f, k):
    """float32 [N, groups] of scales or offsets in one or two levels."""
    values = xp.from_bits(numbers, f.scale)
    if f.scale_levels == 1:
        return values
    per_step = _STEP_WEIGHTS // f.group_size
    return _spread(xp, values, per_step, codes.shape[1]) * xp.cast(codes, "float32")


def dequantize(c):
    """float32 [N, K] of a Canonical: (q - z) * s, or q * s + b. Exact for 4-bit codes; others round once or twice."""
    f, xp, k = c.format, arrays.of(c.codes), c.codes.shape[1]
    group = f.group_size or k
    scales = _spread(xp, _levels(xp, c.scales, c.scale_codes, f, k), group, k)
    q = xp.cast(c.codes, "float32")
    if f.zero == "float":
        return q * scales + _spread(xp, _levels(xp, c.offsets, c.offset_codes, f, k), group, k)
    zeros = 1 << (f.bits - 1)
    if f.zero == "int":
        zeros = _spread(xp, xp.cast(c.zeros, "float32"), group, k)
    return (q - zeros) * scales


def _encoded(xp, values, f):
    """float32 [N, groups] in the format's levels: (16-bit numbers, codes or None, the float32 values they mean)."""
    if f.scale_levels == 1:
        numbers = xp.rounded(values, f.scale)
        return numbers, None, xp.from_bits(numbers, f.scale)
    n, groups = values.shape
    per_step = _STEP_WEIGHTS // f.group_size
    count = -(-groups // per_step)
    padded = xp.full(values, (n, count * per_step), 0, "float32")
    padded[:, :groups] = values
    numbers = xp.rounded(xp.amax(abs(padded.reshape(n, count, per_step)), 2) / 127, f.scale)
    steps = _spread(xp, xp.from_bits(numbers, f.scale), per_step, groups)
    codes = (values / xp.where(steps == 0, steps + 1, steps)).round().clip(-127, 127)
    return numbers, xp.cast(codes, "int8"), codes * steps


def _check_finite(xp, numbers, values, f):
    """ValueError names the first group whose scale or offset, [N, groups], is no number that the format has."""
    bad = xp.cast(xp.isfinite(numbers), "uint8") == 0
    if not bool(bad.any()):
        return
    row = int(xp.cast(bad, "uint8").reshape(-1).argmax()) // numbers.shape[1]
    largest = xp.where(bad[row], xp.amax(abs(values[row]), 1), 0)  # groups that share a step are all bad
    group, size = int(largest.argmax()), values.shape[2]
    where = f"weight of row {row}, columns {group * size} to {(group + 1) * size - 1}"
    if not bool(xp.isfinite(values[row, group]).all()):
        raise ValueError(f"{where}: it holds NaN or an infinity")
    raise ValueError(f"{where}: up to {float(largest[group]):.4g}, which is too large for scales of {f.scale}")


def quantize(weight, format, scale_type="bf16"):
    """Round-to-nearest per group: a packing.Canonical. `weight`: float [N, K], K a multiple of the group size;
    `scale_type` where the format names none. Without zero points a group's outermost value has the outermost code;
    with them codes span the group's range. Scales are rounded to what is stored before codes are chosen. ValueError: a
    weight that is no number, or too large for the scales' type."""
    from qgemm.packing import Canonical, check_format

    f = as_format(format)
    f = dataclasses.replace(f, scale=f.scale or ("fp16" if f.scale_levels == 2 else scale_type))
    check_format(f)
    n, k = weight.shape
    group = f.group_size or k
    if k % group:
        raise ValueError(f"k {k} is not a multiple of group_size {group}")
    xp = arrays.of(weight)
    values = xp.cast(weight, "float32").reshape(n, k // group, group)
    top, half = (1 << f.bits) - 1, 1 << (f.bits - 1)
    low, high = xp.amin(values, 2), xp.amax(values, 2)
    planes = {}
    if f.zero == "none":
        # The larger side decides: half steps reach below zero, half - 1 above.
        wanted = xp.maximum(-low / half, high / (half - 1))
    else:
        if f.zero == "int":
            low, high = xp.where(low > 0, low * 0, low), xp.where(high < 0, high * 0, high)
        wanted = (high - low) / top
    _check_finite(xp, wanted, values, f)
    scales, planes["scale_codes"], steps = _encoded(xp, wanted, f)
    _check_finite(xp, steps, values, f)
    safe = xp.where(steps == 0, steps + 1, steps)
    if f.zero == "float":
        planes["offsets"], planes["offset_codes"], offsets = _encoded(xp, low, f)
        _check_finite(xp, offsets, values, f)
        codes = ((values - offsets[..., None]) / safe[..., None]).round()
    elif f.zero == "int":
        zeros = (-low / safe).round().clip(0, top)
        planes["zeros"] = xp.cast(zeros, "uint8")
        codes = (values / safe[..., None]).round() + zeros[..., None]
    else:
        codes = (values / safe[..., None]).round() + half
    return Canonical(f, xp.cast(codes.clip(0, top).reshape(n, k), "uint8"), scales, **planes)
