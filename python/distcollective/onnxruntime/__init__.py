"""DistCollective nodes in ONNX Runtime.

Models that NVIDIA's Polygraphy has sharded run in the stock ONNX Runtime, on CPUs, with a process
for each rank:

>>> import distcollective, onnxruntime                                         # doctest: +SKIP
>>> distcollective.distributed.init_process_group()                            # doctest: +SKIP
>>> options = onnxruntime.SessionOptions()                                     # doctest: +SKIP
>>> options.register_custom_ops_library(distcollective.onnxruntime_library())  # doctest: +SKIP
>>> session = onnxruntime.InferenceSession("sharded.onnx", options)            # doctest: +SKIP

``python -m distcollective.onnxruntime MODEL OUTPUT`` writes a model without the shapes that are
stored in it, which are those of one device if they were there before the model was sharded.
"""

import argparse
import importlib
from typing import Any, List, Optional

from . import _core


def library() -> str:
    """The path of the library for ``SessionOptions.register_custom_ops_library``."""
    path = _core.__file__
    assert path is not None
    return path


def drop_stored_shapes(model: Any) -> None:
    """Remove the shapes of inner tensors from a model of the package onnx."""
    del model.graph.value_info[:]


def main(arguments: Optional[List[str]] = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m distcollective.onnxruntime",
        description="Write a model without the shapes of inner tensors that are stored in it.",
    )
    parser.add_argument("model", help="the model's file")
    parser.add_argument("output", help="the file to write")
    parsed = parser.parse_args(arguments)
    onnx = importlib.import_module("onnx")
    model = onnx.load(parsed.model)
    drop_stored_shapes(model)
    onnx.save(model, parsed.output)


if __name__ == "__main__":
    main()
