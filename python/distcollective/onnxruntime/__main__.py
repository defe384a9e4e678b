"""The command ``python -m distcollective.onnxruntime``."""

from . import main

main()
