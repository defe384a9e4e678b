"""DistCollective nodes in ONNX Runtime.

Models that NVIDIA's Polygraphy has sharded run in the stock ONNX Runtime, on CPUs, with a process
for each rank:

>>> import distcollective, distcollective.distributed, onnxruntime             # doctest: +SKIP
>>> distcollective.distributed.init_process_group()                            # doctest: +SKIP
>>> options = onnxruntime.SessionOptions()                                     # doctest: +SKIP
>>> options.register_custom_ops_library(distcollective.onnxruntime_library())  # doctest: +SKIP
>>> session = onnxruntime.InferenceSession("sharded.onnx", options)            # doctest: +SKIP

``python -m distcollective.onnxruntime MODEL OUTPUT`` writes a model without the shapes that are
stored in it for inner tensors and outputs, which are those of one device if they were there before
the model was sharded.
"""

import argparse
import importlib
from pathlib import Path
from typing import Any, List, Optional

from .. import _core


def library() -> str:
    """The path of the library for ``SessionOptions.register_custom_ops_library``."""
    path = _core.__file__
    assert path is not None
    return path


def drop_stored_shapes(model: Any) -> None:
    """Remove the shapes of inner tensors and outputs from a model of the package onnx."""
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")


def main(arguments: Optional[List[str]] = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m distcollective.onnxruntime",
        description="Write a model without the shapes of inner tensors and outputs that are stored in it. "
        "Weights in files beside the model stay there if OUTPUT is in the same folder, else OUTPUT has them.",
    )
    parser.add_argument("model", help="the model's file")
    parser.add_argument("output", help="the file to write")
    parsed = parser.parse_args(arguments)
    onnx = importlib.import_module("onnx")
    # A protobuf has at most 2 GiB, so weights that are in files of their own should stay there.
    is_beside = Path(parsed.model).resolve().parent == Path(parsed.output).resolve().parent
    model = onnx.load(parsed.model, load_external_data=not is_beside)
    drop_stored_shapes(model)
    onnx.save(model, parsed.output)
