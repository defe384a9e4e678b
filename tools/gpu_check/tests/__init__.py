"""Tests of tools/gpu-check: python3 -m unittest discover --start-directory tools --pattern 'test_*.py'."""
