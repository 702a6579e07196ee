#!/usr/bin/env python3
"""outside_launch's quantizer, packer and expectations on the CPU, against kernels/LAYOUT.md read code by code.

Exit code 77 = skipped, where PyTorch is not installed.
"""

import importlib.util
import itertools
import pathlib
import sys
import unittest

if importlib.util.find_spec("torch") is None:
    print("skipped: PyTorch is not installed")
    sys.exit(77)

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import outside_launch as outside


def unpacked_code(plane, bits, padded_k, row, column):
    """The code of (row, column) by LAYOUT.md's "the other way round"."""
    block = (row // 16) * (padded_k // 64) + column // 64
    lane, word, odd = 4 * (row % 8) + (column % 8) // 2, (column % 64) // 16, column % 2
    p = (row % 16) // 8 + 2 * ((column % 16) // 8)
    base = 128 * bits * block
    byte_in_word = 2 * odd + p // 2
    if bits == 8:
        return plane[base + 512 * (word // 2) + 16 * lane + 4 * (2 * (word % 2) + p % 2) + byte_in_word] ^ 0x80
    low = int.from_bytes(bytes(plane[base + 16 * lane + 4 * word : base + 16 * lane + 4 * word + 4]), "little")
    code = low >> (16 * odd + 4 * p) & 15
    i = 2 * word + p % 2
    if bits == 5:
        code |= (plane[base + 512 + 4 * lane + byte_in_word] >> i & 1) << 4
    if bits == 6:
        code |= (plane[base + 512 + 8 * lane + 4 * (word // 2) + byte_in_word] >> 2 * (i % 4) & 3) << 4
    return code


def format_of(bits, group_size, zero="NONE", levels=1):
    return outside.Format({"bits": bits, "group_size": group_size, "scale_type": "SCALAR_TYPE_FP16",
                           "zero_point": f"ZERO_POINT_{zero}", "scale_levels": levels})


class Packing(unittest.TestCase):
    def test_the_documented_example(self):
        outside.check_packing(torch)

    def test_every_code_stands_where_the_layout_says(self):
        n, k, padded_n, padded_k = 20, 72, 64, 128
        for bits in (4, 5, 6, 8):
            codes = torch.randint(0, 1 << bits, (n, k), dtype=torch.uint8, generator=torch.Generator().manual_seed(bits))
            plane = outside.pack_weights(torch, codes, bits).tolist()
            self.assertEqual(len(plane), padded_n * padded_k * bits // 8)
            for row, column in itertools.product(range(padded_n), range(padded_k)):
                expected = int(codes[row, column]) if row < n and column < k else 1 << (bits - 1)
                self.assertEqual(unpacked_code(plane, bits, padded_k, row, column), expected, (bits, row, column))

    def test_scales_and_steps_stand_in_fragment_order(self):
        values = torch.arange(20 * 3, dtype=torch.int16).reshape(20, 3)
        plane = outside.pack_plane(torch, values, 4, -1).reshape(4, 4, 8, 2)
        steps = outside.pack_steps(torch, [values, values + 100], 3).reshape(4, 3, 2, 8, 2)
        for row, column in itertools.product(range(20), range(3)):
            self.assertEqual(plane[row // 16, column, row % 8, row % 16 // 8], values[row, column])
            for kind in (0, 1):
                self.assertEqual(steps[row // 16, column, kind, row % 8, row % 16 // 8], values[row, column] + 100 * kind)
        self.assertTrue((plane[:, 3] == -1).all())


class Quantization(unittest.TestCase):
    def test_weights_are_near_what_they_stand_for(self):
        weights = torch.randn(48, 768, generator=torch.Generator().manual_seed(3)) * 0.1
        for bits, group, zero, levels in itertools.product((4, 5, 6, 8), (0, 16, 32, 64, 128, 256),
                                                           ("NONE", "INTEGER", "FLOAT"), (1, 2)):
            if levels == 2 and (group in (0, 256) or zero == "INTEGER"):
                continue
            quantized = outside.Quantized(torch, weights, format_of(bits, group, zero, levels))
            error = ((quantized.dequantized - weights.double()).norm() / weights.double().norm()).item()
            self.assertLess(error, 2.5 / (1 << bits), (bits, group, zero, levels))
            self.assertGreater(error, 0.4 / (1 << bits), (bits, group, zero, levels))
            self.assertLess(int(quantized.codes.max()), 1 << bits)

    def test_what_is_stored_is_what_is_meant(self):
        weights = torch.randn(4, 320, generator=torch.Generator().manual_seed(4))
        group = 32
        q = outside.Quantized(torch, weights, format_of(5, group, "FLOAT", 2))
        for row, column in ((0, 0), (3, 319), (1, 255), (2, 256)):
            j, step = column // group, column // 256
            scale = float(q.scales[row, step]) * int(q.scale_codes[row, j])
            offset = float(q.offsets[row, step]) * int(q.offset_codes[row, j])
            self.assertAlmostEqual(float(q.dequantized[row, column]), int(q.codes[row, column]) * scale + offset)
        q = outside.Quantized(torch, weights, format_of(8, 0, "INTEGER"))
        self.assertEqual(tuple(q.scales.shape), (4, 1))
        self.assertAlmostEqual(float(q.dequantized[2, 7]),
                               (int(q.codes[2, 7]) - int(q.zeros[2, 0])) * float(q.scales[2, 0]))

    def test_int8_activations_are_the_nearest_bytes_of_their_block(self):
        x = torch.zeros(2, 40)
        x[0, 3], x[0, 4], x[0, 5], x[0, 31], x[1, 39] = -127, 2.5, 3.5, 0.25, 254
        meant = outside.as_int8(torch, x.bfloat16())
        self.assertEqual(tuple(meant.shape), (2, 40))
        self.assertEqual([meant[0, i].item() for i in (3, 4, 5, 31, 32)], [-127, 2, 4, 0, 0])
        self.assertAlmostEqual(meant[1, 39].item(), 254)
        normal = torch.randn(64, 4096, generator=torch.Generator().manual_seed(5)).bfloat16()
        error = ((outside.as_int8(torch, normal) - normal.double()).norm() / normal.double().norm()).item()
        self.assertTrue(0.004 < error < 0.009, error)


if __name__ == "__main__":
    unittest.main()
