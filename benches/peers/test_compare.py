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


# What the probe finds before a pass. Mostly a line takes 90 ns.
FIRST = [(480, 20), (90, 20), (95, 20), (85, 20), (88, 20)]


class Steadiness(unittest.TestCase):
    def runs_between(self, *probes):
        """How often each of two programs runs, and the machine, if the probes give this one after the other."""
        figures, runs = iter(probes), [0, 0]
        machine = compare.Machine(lambda: next(figures), pause=0)

        def program(number):
            runs[number] += 1
            return number

        self.assertEqual(machine.measure_pass([lambda: program(0), lambda: program(1)]), [0, 1])
        self.assertEqual(len(machine.probes), len(probes))
        return runs, machine.report()[-1]

    def test_on_a_steady_machine_each_program_runs_once(self):
        runs, report = self.runs_between(*FIRST, (90, 20), (110, 45), (95, 20), (100, 10))
        self.assertEqual(runs, [1, 1])
        self.assertIn("the machine changed: 0 of 2", report)

    def test_a_program_waits_for_the_machine_of_the_first_and_runs_again_if_it_changes(self):
        near, far = (90, 20), (480, 20)
        runs, report = self.runs_between(*FIRST, near, far, far, near, near, near, far, near, near)
        self.assertEqual(runs, [2, 2])
        self.assertIn("the machine changed: 0 of 2", report)

    def test_the_last_run_counts_anyway(self):
        near, far = (90, 20), (90, 90)
        runs, report = self.runs_between(*FIRST, *[near, far] * compare.MOST_RUNS, near, near)
        self.assertEqual(runs, [compare.MOST_RUNS, 1])
        self.assertIn("the machine changed: 1 of 2", report)


if __name__ == "__main__":
    unittest.main()
