"""Which results go into one report."""

import argparse
import json
import pathlib
import subprocess
import tempfile
import unittest

from gpu_check.build import tree_of
from gpu_check.run import SAME, begin
from gpu_check.steps import Machine


class Kept(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def begin(self, **about):
        found = {"cuda": {"version": "13.0", "gpus": 1}, "nccl": {"version": "2.30.7"}}
        about = {"commit": "c", "modified": True, "tree": "t"} | about
        return begin(self.folder, about, found, Machine(1, "2.30.7"), argparse.Namespace(fakes=True, quick=True))

    def test_results_of_other_sources_do_not_go_into_a_report(self):
        kept = self.begin() | {"steps": [{"name": "a step"}]}
        (self.folder / "report.json").write_text(json.dumps(kept))
        self.assertEqual(self.begin()["steps"], kept["steps"])
        for field in ("commit", "tree"):
            self.assertIn(field, SAME)
            with self.assertRaisesRegex(SystemExit, f"its {field} is .*, and now it is other; give another folder"):
                self.begin(**{field: "other"})
        # A report from before there was the field.
        del kept["tree"]
        (self.folder / "report.json").write_text(json.dumps(kept))
        with self.assertRaisesRegex(SystemExit, "its tree is None, and now it is t"):
            self.begin()


class Tree(unittest.TestCase):
    def test_the_tree_changes_with_each_file(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            git = lambda *words: subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True)
            git("init")
            (root / "tracked").write_text("1")
            git("add", "tracked")
            trees = [tree_of(root)]
            (root / "tracked").write_text("2")
            trees.append(tree_of(root))
            (root / "new").write_text("3")
            trees.append(tree_of(root))
            self.assertEqual(len(set(trees)), 3)
            self.assertEqual(tree_of(root), trees[-1])
            # What is to be committed is as it was.
            self.assertEqual(git("diff", "--cached", "--name-only").stdout, "tracked\n")
