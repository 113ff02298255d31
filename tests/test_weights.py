"""One weight that is off by one per cent is found, in every precision; what exporters do to tensors is not taken for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper, save

from exporter.mixed import Mixed
from exporter.trace import trace
from exporter.weights import check_quantised, check_weights, used_tensors
from lgip_ort.errors import RunFault


def _write(path: Path, **tensors: np.ndarray) -> Path:
    """A graph file that holds `tensors` and does nothing with them."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    held = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [x],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        held,
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def _tensors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = {"weight": (40, 30), "bias": (8,), "part": (5,), "scale": ()}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def _stored(tensors):
    """As exporters store them: products' right operands transposed, two biases joined, a shape changed."""
    t = {name: tensor.numpy() for name, tensor in tensors.items()}
    joined = np.concatenate([np.zeros(3, t["part"].dtype), t["part"]])
    return {
        "val_1": np.ascontiguousarray(t["weight"].T),
        "bias": t["bias"].reshape(1, 8),
        "val_2": joined,
        "scale": t["scale"],
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_tensor_is_found(dtype, tmp_path):
    tensors = _tensors(dtype)
    tensors["zeros"] = torch.zeros(4, dtype=dtype)  # dropped by the exporter: adding it changes nothing
    path = _write(tmp_path / "g.onnx", **_stored(tensors))
    assert check_weights(path, "g.onnx", tensors) == {"tensors": 5, "in_pieces": 1, "differences": 0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ["weight", "bias", "part", "scale"])
def test_one_per_cent_is_found(name, dtype, tmp_path):
    tensors = _tensors(dtype)
    path = _write(tmp_path / "g.onnx", **_stored(tensors | {name: tensors[name] * 1.01}))
    with pytest.raises(
        RunFault, match=rf"g\.onnx: tensor {name} \(.*\) of the PyTorch tower is not in the graph as it is"
    ):
        check_weights(path, "g.onnx", tensors)


def test_a_single_value_is_found_and_how_far_it_is_off(tmp_path):
    tensors = _tensors()
    changed = tensors["weight"].clone()
    changed[3, 2] *= 1.01
    path = _write(tmp_path / "g.onnx", **_stored(tensors | {"weight": changed}))
    off = abs(float(changed[3, 2] - tensors["weight"][3, 2]))
    with pytest.raises(RunFault, match=rf"the nearest of its size differs by up to {off:.3g}"):
        check_weights(path, "g.onnx", tensors)


def test_weights_of_nobody_are_refused(tmp_path):
    path = _write(tmp_path / "g.onnx", **_stored(_tensors()), lora=np.ones((8, 8), np.float32))
    with pytest.raises(RunFault, match=r"are no tensor of the PyTorch tower.*the largest is lora \(8, 8\)"):
        check_weights(path, "g.onnx", _tensors())


def test_fp32_bytes_are_no_fp16_weights(tmp_path):
    path = _write(tmp_path / "g.onnx", **_stored(_tensors()))
    with pytest.raises(RunFault, match="tensor weight"):
        check_weights(path, "g.onnx", _tensors(torch.float16))


def test_only_what_the_tower_uses_is_expected():
    class Tower(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.used(x)

    traced = trace(Tower(), torch.zeros(2, 4), {0: torch.export.Dim("batch")})
    assert sorted(used_tensors(traced)) == ["used.bias", "used.weight"]
    assert set(used_tensors(traced)) <= {name for name, _ in Mixed(traced).named_buffers()}, "the same names are stored"


def _quantised(weight: np.ndarray) -> dict[str, np.ndarray]:
    scale = (np.abs(weight).max(0) / 127).astype(np.float32)
    integers = np.round(weight / scale).astype(np.int8)
    return {"w_quantized": integers, "w_scale": scale, "w_zero_point": np.zeros(weight.shape[1], np.int8)}


def test_quantised_weights(tmp_path):
    weight = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    exact = _write(tmp_path / "exact.onnx", w=weight)
    honest = _quantised(weight)
    measured = check_quantised(_write(tmp_path / "q.onnx", **honest), "q.onnx", exact)
    assert measured["tensors"] == 1 and 0.3 < measured["largest_step"] <= 0.51
    wrong = honest | {"w_scale": honest["w_scale"] * np.float32(1.02)}
    with pytest.raises(RunFault, match=r"q\.onnx: w_quantized \(6, 8\) is up to .* steps away"):
        check_quantised(_write(tmp_path / "w.onnx", **wrong), "q.onnx", exact)
    clipped = honest | {
        "w_scale": honest["w_scale"] / 2,
        "w_quantized": np.clip(np.round(weight / (honest["w_scale"] / 2)), -128, 127).astype(np.int8),
    }
    with pytest.raises(RunFault, match="steps away"):
        check_quantised(_write(tmp_path / "c.onnx", **clipped), "q.onnx", exact)
    with pytest.raises(RunFault, match="no quantised weight found"):
        check_quantised(exact, "exact.onnx", exact)
