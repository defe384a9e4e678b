"""Which steps there are, and in which order."""

import argparse
import pathlib
import unittest

from gpu_check.run import LIMIT
from gpu_check.steps import SHARED_GPU, Machine, steps

ARGUMENTS = argparse.Namespace(quick=False, fakes=False, failures=False, sanitize=False, sanitizer="compute-sanitizer")


def on(gpus, nccl, **more):
    return list(
        steps(pathlib.Path("/programs"), Machine(gpus, nccl), argparse.Namespace(**{**vars(ARGUMENTS), **more}))
    )


class Order(unittest.TestCase):
    def test_two_ranks_come_before_one_rank_and_kernels_and_leaks(self):
        names = [step.name for step in on(1, "2.30.7")]
        two = [number for number, name in enumerate(names) if "2 ranks" in name]
        later = [number for number, name in enumerate(names) if "1 rank" in name or name in ("kernels", "leaks")]
        self.assertEqual(len(two), 8)
        self.assertEqual(len(later), 6)
        self.assertLess(max(two), min(later))
        self.assertEqual(names[-2:], ["kernels", "leaks"])

    def test_a_whole_run_has_nine_minutes(self):
        self.assertEqual(LIMIT, 540)

    def test_all_two_rank_steps_may_use_up_their_limits(self):
        self.assertLess(sum(step.seconds for step in on(1, "2.30.7") if "2 ranks" in step.name), LIMIT)

    def test_each_name_is_one_step(self):
        names = [step.name for step in on(1, "2.30.7", failures=True, sanitize=True)]
        self.assertEqual(len(names), len(set(names)))


class Sharing(unittest.TestCase):
    def test_the_settings_for_sharing(self):
        expected = {
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
            "NCCL_MAX_CTAS": "4",
            "CUDA_DEVICE_MAX_CONNECTIONS": "32",
            "CUDA_MODULE_LOADING": "EAGER",
        }
        self.assertEqual(SHARED_GPU, expected)

    def test_ranks_that_share_a_gpu_have_its_settings(self):
        for step in on(1, "2.30.7"):
            shared = {name: value for name, value in step.settings.items() if name in SHARED_GPU}
            self.assertEqual(shared, SHARED_GPU if "2 ranks" in step.name else {}, step.name)

    def test_ranks_with_a_gpu_each_do_not(self):
        for step in on(2, "2.30.7"):
            self.assertFalse(SHARED_GPU.keys() & step.settings.keys(), step.name)

    def test_an_older_nccl_is_a_reason(self):
        found = on(1, "2.28.9")
        reasons = [step.skipped for step in found if step.skipped]
        self.assertEqual(len(reasons), 1)
        self.assertIn("2.28.9", reasons[0])

    def test_ranks_are_threads_and_processes(self):
        for part in ("calls", "command line"):
            for place in ("threads", "processes"):
                (step,) = [step for step in on(1, "2.30.7") if step.name == f"{part}, 2 ranks as {place}"]
                self.assertIsNone(step.skipped)
                launched = [word for command in step.commands for word in command if word in ("launch", "--processes")]
                self.assertEqual(bool(launched), place == "processes", step.name)
