"""Tests of compare's arithmetic and of its table."""

import importlib.machinery
import importlib.util
import unittest
from pathlib import Path

PATH = str(Path(__file__).parent / "compare")
SPEC = importlib.util.spec_from_loader("compare", importlib.machinery.SourceFileLoader("compare", PATH))
compare = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(compare)


def times(row, *lines):
    return compare.times_of_passes(compare.Point(line, row) for line in lines)


class Table(unittest.TestCase):
    def test_a_ratio_is_the_median_of_the_passes_and_of_the_faster_mpi(self):
        figures = times(
            "broadcast",
            # The machine is slow in the first pass, and becomes so in the last.
            "openmpi,2,broadcast_bar,8,9,1,99,9,100",
            "mpich,2,broadcast_bar,8,8,1,99,9,100",
            "symmetric,2,broadcast_bar,8,4,1,99,9,100",
            "private,2,broadcast_bar,8,16,1,99,9,100",
            "openmpi,2,broadcast_bar,8,3,1,99,9,100",
            "mpich,2,broadcast_bar,8,5,1,99,9,100",
            "symmetric,2,broadcast_bar,8,1,1,99,9,100",
            "private,2,broadcast_bar,8,4,1,99,9,100",
            "openmpi,2,broadcast_bar,8,3,1,99,9,100",
            "mpich,2,broadcast_bar,8,5,1,99,9,100",
            "symmetric,2,broadcast_bar,8,4,1,99,9,100",
            "private,2,broadcast_bar,8,6,1,99,9,100",
            "private,2,broadcast,1048576,1,1,99,9,100",
        )
        text = compare.table(figures, ["symmetric", "private", "openmpi", "mpich"])
        self.assertIn("| broadcast | 8 B | 3.00 | 5.00 | 4.00 | 6.00 | 2.00 | 0.50 |", text)
        self.assertIn("| broadcast | 1 MiB |  |  |  | 1.00 |  |  |", text)
        self.assertIn("- symmetric buffers: 2.00\n- private buffers: 0.50", text)

    def test_rooted_calls_back_to_back_have_rows_and_no_part_in_the_mean(self):
        figures = times("gather", "openmpi,2,gather_bar,8,6,1,99,9,1", "private,2,gather_bar,8,3,1,99,9,1")
        figures |= times("gather back to back", "openmpi,2,gather,8,1,1,99,9,1", "private,2,gather,8,4,1,99,9,1")
        figures |= times("gather", "symmetric,2,gather_bar,8,3,1,99,9,1")
        text = compare.table(figures, ["symmetric", "private", "openmpi"])
        self.assertIn("| gather back to back | 8 B | 1.00 |  | 4.00 |  | 0.25 |", text)
        self.assertIn("- private buffers: 2.00", text)
        self.assertEqual(len(list(compare.points_of_plot(figures, 2))), 3)

    def test_gloo_is_compared_by_itself(self):
        lines = ["gloo,2,gather,262144,80,1,99,9,1", "private,2,gather,262144,10,1,99,9,1"]
        text = compare.table(times("gather", *lines), ["symmetric", "private", "gloo"])
        self.assertIn("- from 256 KiB: 8.0", text)
        self.assertNotIn("up to 16 KiB", text)

    def test_the_geometric_mean_of_inverse_ratios_is_one(self):
        self.assertAlmostEqual(compare.geometric_mean([4, 0.25, 2, 0.5]), 1)


class Steadiness(unittest.TestCase):
    def passes_of(self, *probes):
        """How often a pass is measured, and the machine, if the probes give this one after the other."""
        figures, measured = iter(probes), []
        machine = compare.Machine(lambda: next(figures))
        result = machine.steady(lambda: measured.append(0) or len(measured))
        self.assertEqual(result, len(measured))
        return len(measured), machine

    def test_a_pass_between_equal_probes_is_measured_once(self):
        self.assertEqual(self.passes_of((90, 20), (110, 14))[0], 1)

    def test_a_pass_in_which_the_machine_changes_is_repeated(self):
        count, machine = self.passes_of((90, 20), (480, 20), (480, 20), (470, 21))
        self.assertEqual(count, 2)
        self.assertIn("the machine changed: 0 of 1", machine.report()[-1])

    def test_the_third_time_counts_anyway(self):
        count, machine = self.passes_of(*[(90, 20), (90, 10)] * 3)
        self.assertEqual(count, 3)
        self.assertIn("the machine changed: 1 of 1", machine.report()[-1])


if __name__ == "__main__":
    unittest.main()
