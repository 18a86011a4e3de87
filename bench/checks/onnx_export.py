"""What torch.onnx.export writes: does onnx accept it, and does it compute what the module computes?"""

from __future__ import annotations

import functools
import importlib.util
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from judging import Skip, run


def check_export(*, dynamo: bool) -> str:
    """A small network of the usual layers, through a file."""
    for name in ("torch", "onnx", *(["onnxscript"] if dynamo else [])):
        if importlib.util.find_spec(name) is None:
            raise Skip(f"needs {name}, which is not in this environment")
    import onnx
    import torch
    from numerics import Errors
    from onnx.reference import ReferenceEvaluator

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(4 * 7 * 7, 10), torch.nn.LayerNorm(10), torch.nn.Softmax(-1),
    ).eval()  # fmt: skip
    x = torch.randn(2, 3, 15, 15)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = Path(folder, "model.onnx")
        torch.onnx.export(module, (x,), str(file), dynamo=dynamo, input_names=["x"])
        model = onnx.load(str(file))  # with weights that lie in a file beside it
    onnx.checker.check_model(model, full_check=True)
    (got,) = ReferenceEvaluator(model).run(None, {"x": x.numpy()})
    errors = Errors()
    errors.compare("the reference's result", torch.from_numpy(got.copy()), module.double()(x.double()))
    return f"opset {model.opset_import[0].version}, {len(model.graph.node)} nodes: {errors}"


CHECKS: dict[str, Callable[[], str]] = {
    "torchscript": functools.partial(check_export, dynamo=False),
    "dynamo": functools.partial(check_export, dynamo=True),
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
