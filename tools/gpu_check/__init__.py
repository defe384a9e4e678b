"""What tools/gpu-check does, in parts: build, machine, steps, runner, stacks, report."""
