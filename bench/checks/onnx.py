"""Does this environment's ONNX work? Needs nothing but onnx and what it depends on."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# This file has the name of a package, for which its folder must not stand in.
sys.path[:] = [str(HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != HERE)]

from judging import BASE, PREFIX, Skip, inside, run  # noqa: E402 - the path comes first

SYSTEM = tuple(Path(part) for part in ("/lib", "/lib64", "/usr/lib", "/usr/lib64"))


def model() -> Any:
    """Y = relu(X W + B), X of 3x4."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    weight = random.uniform(-1, 1, (4, 5)).astype(np.float32)
    bias = random.uniform(-1, 1, 5).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["X", "W", "B"], ["Z"]),
            helper.make_node("Relu", ["Z"], ["Y"]),
        ],
        "gemm-relu",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [3, 5])],
        [numpy_helper.from_array(weight, "W"), numpy_helper.from_array(bias, "B")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check_import() -> str:
    import onnx

    assert inside(onnx.__file__, PREFIX), f"{onnx.__file__} is not inside {PREFIX}"
    return f"onnx {onnx.__version__} from inside the environment"


def check_native() -> str:
    import google.protobuf
    import onnx.onnx_cpp2py_export as native

    assert native.__file__ is not None
    assert inside(native.__file__, PREFIX), f"{native.__file__} is not inside {PREFIX}"
    assert native.__file__.endswith(".so"), f"{native.__file__} is no native extension"
    assert inside(google.protobuf.__file__, PREFIX), f"{google.protobuf.__file__} is not inside {PREFIX}"
    schemas = len(native.defs.get_all_schemas())
    assert schemas > 100, f"only {schemas} operator schemas"
    return f"{Path(native.__file__).name} with {schemas} schemas; protobuf {google.protobuf.__version__}"


def check_libraries() -> str:
    """After the native extension was loaded: nothing from outside but the system and the interpreter."""
    import onnx.checker  # noqa: F401 - loading it is the point

    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = {parts[5] for line in lines if len(parts := line.split(None, 5)) == 6 and ".so" in parts[5]}
    strange = sorted(path for path in mapped if not inside(path, PREFIX, BASE, *SYSTEM))
    assert not strange, f"loaded from elsewhere: {', '.join(strange)}"
    foreign = [
        p for p in mapped if "protobuf" in Path(p).name or "onnx" in Path(p).name if not inside(p, PREFIX)
    ]
    assert not foreign, f"the system's own copy was loaded: {', '.join(sorted(foreign))}"
    own = sum(inside(path, PREFIX) for path in mapped)
    return f"{len(mapped)} libraries, {own} of them from the environment, the rest from the system"


def check_checker() -> str:
    import onnx
    from onnx import checker

    checker.check_model(model(), full_check=True)
    broken = onnx.ModelProto()
    broken.CopyFrom(model())
    broken.graph.node[0].op_type = "NoSuchOperator"
    try:
        checker.check_model(broken, full_check=True)
    except checker.ValidationError:
        return "a good model passes, one with an unknown operator is refused"
    raise AssertionError("a model with an unknown operator passed")


def check_shapes() -> str:
    from onnx import shape_inference

    inferred = shape_inference.infer_shapes(model(), check_type=True, strict_mode=True)
    middle = next(value for value in inferred.graph.value_info if value.name == "Z")
    shape = [dimension.dim_value for dimension in middle.type.tensor_type.shape.dim]
    assert shape == [3, 5], f"the inner tensor came out as {shape}"
    return "the inner tensor was inferred as 3x5"


def check_roundtrip() -> str:
    import onnx

    original = model()
    raw = original.SerializeToString()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        onnx.save(original, str(file))
        again = onnx.load(str(file))
    assert again == original
    assert onnx.load_from_string(raw) == original
    return f"{len(raw)} bytes written, read and equal"


def check_evaluator() -> str:
    import numpy as np
    from onnx import numpy_helper
    from onnx.reference import ReferenceEvaluator

    made = model()
    weights = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    given = np.random.default_rng(1).uniform(-1, 1, (3, 4)).astype(np.float32)
    (got,) = ReferenceEvaluator(made).run(None, {"X": given})
    wanted = np.maximum(given @ weights["W"] + weights["B"], 0)
    largest = float(np.abs(got - wanted).max())
    assert got.shape == (3, 5), f"shape {got.shape}"
    assert largest <= 1e-6, f"differs from numpy by {largest}"
    assert 0 < np.count_nonzero(got) < got.size, "the input does not exercise Relu"
    return f"equals numpy within {largest:.1e}"


def check_converter() -> str:
    from onnx import checker, version_converter

    try:
        converted = version_converter.convert_version(model(), 18)
    except ImportError as error:
        raise Skip(f"no converter in this build: {error}") from error
    checker.check_model(converted, full_check=True)
    assert converted.opset_import[0].version == 18
    return "opset 17 converted to 18 and valid"


CHECKS: dict[str, Callable[[], str]] = {
    "import": check_import,
    "native": check_native,
    "libraries": check_libraries,
    "checker": check_checker,
    "shapes": check_shapes,
    "roundtrip": check_roundtrip,
    "evaluator": check_evaluator,
    "converter": check_converter,
}


if __name__ == "__main__":
    sys.exit(run(CHECKS))
