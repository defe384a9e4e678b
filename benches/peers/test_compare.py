"""Tests of compare's arithmetic and of its table."""

import importlib.machinery
import importlib.util
import unittest
from pathlib import Path

PATH = str(Path(__file__).parent / "compare")
SPEC = importlib.util.spec_from_loader("compare", importlib.machinery.SourceFileLoader("compare", PATH))
compare = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(compare)


def points(*lines):
    return [compare.Point(line) for line in lines]


class Table(unittest.TestCase):
    def test_the_ratio_is_that_of_the_faster_mpi_by_the_median_of_the_passes(self):
        figures = compare.medians(
            points(
                "openmpi,2,broadcast_bar,8,9,1,99,9,100",
                "openmpi,2,broadcast_bar,8,3,1,99,9,100",
                "openmpi,2,broadcast_bar,8,4,1,99,9,100",
                "mpich,2,broadcast_bar,8,5,1,99,9,100",
                "symmetric,2,broadcast_bar,8,2,1,99,9,100",
                "private,2,broadcast_bar,8,8,1,99,9,100",
                "private,2,broadcast,1048576,1,1,99,9,100",
            )
        )
        text = compare.table(figures, ["symmetric", "private", "openmpi", "mpich"])
        self.assertIn("| broadcast | 8 B | 4.00 | 5.00 | 2.00 | 8.00 | 2.00 | 0.50 |", text)
        self.assertIn("| broadcast | 1 MiB |  |  |  | 1.00 |  |  |", text)
        self.assertIn("- symmetric buffers: 2.00\n- private buffers: 0.50", text)

    def test_gloo_is_compared_by_itself(self):
        lines = ["gloo,2,gather,262144,80,1,99,9,1", "private,2,gather,262144,10,1,99,9,1"]
        text = compare.table(compare.medians(points(*lines)), ["symmetric", "private", "gloo"])
        self.assertIn("- from 256 KiB: 8.0", text)
        self.assertNotIn("up to 16 KiB", text)

    def test_the_geometric_mean_of_inverse_ratios_is_one(self):
        self.assertAlmostEqual(compare.geometric_mean([4, 0.25, 2, 0.5]), 1)


if __name__ == "__main__":
    unittest.main()
