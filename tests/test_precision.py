"""fp16: what overflows, what is lost, which islands save it, and that the naive conversion would not have passed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from exporter import precision
from exporter.audit import largest_values, local_errors, masked_nodes
from exporter.mixed import Mixed
from exporter.precision import COSINE, halve
from exporter.towers import MASKED
from exporter.trace import trace, where
from lgip_ort.errors import RunFault

WIDTH = 64


class DecomposedNorm(nn.Module):
    """A layer norm written out, as many models have it: the square of an outlier of 800 is beyond fp16."""

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


class Outlier(nn.Module):
    """Adds 800 to one channel of everything, normalises, projects."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(WIDTH, WIDTH), DecomposedNorm(), nn.Linear(WIDTH, 16)
        with torch.no_grad():
            self.first.weight.mul_(30)
            self.first.bias[3] = 800.0

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class Massive(nn.Module):
    """A residual stream with one activation of 1e5, which the norm behind it takes out again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16)
        with torch.no_grad():
            self.down.weight[5] *= 0
            self.down.bias[5] = 1e5
            self.up.weight.mul_(2000)
            self.norm.weight[5] = 0

    def forward(self, x):
        return self.last(self.norm(x + self.down(torch.relu(self.up(x)))))


class Tiny(nn.Module):
    """Weights far below fp16's range, brought back by the norm behind them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, eps=1e-20), nn.Linear(WIDTH, 16)
        with torch.no_grad():
            self.first.weight.mul_(1e-6)
            self.first.bias.zero_()

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


def _case(model):
    rows = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        reference = nn.functional.normalize(model.eval()(rows), dim=-1)
    return trace(model, rows[:2], {0: torch.export.Dim("batch")}), rows, reference


@pytest.mark.parametrize(
    ("model", "operation", "reason"),
    [
        (Outlier(), "norm: pow", "gives |value| 6.6"),
        (Massive(), "down: linear", "gives |value| 1e+05"),
        (Tiny(), "first: linear", "fp16 changes its result by"),
    ],
    ids=["outlier", "massive", "tiny"],
)
def test_islands(model, operation, reason):
    traced, rows, reference = _case(model)
    naive = min(precision._true_fp16(Mixed(traced), rows, reference))
    assert not naive >= COSINE, "the naive conversion must fail the gate, or this test shows nothing"
    half = halve(traced, rows, reference)
    assert half.measured["true_fp16"]["cosine_min"] > 0.999 and half.measured["true_fp16"]["centred_cosine_min"] > 0.999
    lines = [line for line in half.fp32 if line.startswith(operation)]
    assert len(lines) == 1 and reason in lines[0], half.fp32
    assert half.measured["islands"] < len([n for n in traced.graph.nodes if n.op == "call_function"])


def test_outlier_is_found_by_its_square_and_not_by_itself():
    traced, rows, _ = _case(Outlier())
    found = {where(n): largest_values(traced, rows).get(n.name) for n in traced.graph.nodes if n.op == "call_function"}
    assert 700 < found["first: linear"] < 900 < 500_000 < found["norm: pow"] < 700_000


def test_what_takes_a_large_number_is_an_island_as_well():
    half = halve(*_case(Massive()))
    assert [line.split(" (")[0] for line in half.fp32 if "takes |value| 1e+05" in line] == ["norm: layer_norm"]


@pytest.mark.parametrize("sign", [1, -1])
def test_large_is_large_on_either_side_of_zero(sign):
    model = nn.Linear(WIDTH, 16)
    with torch.no_grad():
        model.bias[2] = sign * 5e4
    traced, rows, _ = _case(model)
    assert max(largest_values(traced, rows).values()) == pytest.approx(5e4, rel=1e-3)


def test_large_weight_stays_in_fp32():
    model = Massive()
    traced, rows, reference = _case(model)
    half = halve(traced, rows, reference)
    assert any(line.startswith("tensor down.bias: largest |value| 1e+05, at most 65504") for line in half.fp32)
    stored = dict(half.encoder.named_buffers())
    assert stored["down.bias"].dtype == torch.float32 and float(stored["down.bias"][5]) == 1e5
    assert stored["down.weight"].dtype == torch.float16, "an island's other tensors are stored in fp16"
    assert model.down.weight.dtype == torch.float32, "the model itself is left as it is"


def test_harmless_small_tensors_are_no_islands():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 16))
    with torch.no_grad():
        model[0].bias.fill_(1e-7)  # as transformers initialises the biases of SigLIP
    half = halve(*_case(model))
    assert half.fp32 == [precision.STAYS_FP32] and half.measured["islands"] == 0
    assert half.measured["weights"]["subnormal"] >= WIDTH


def test_too_many_flushed_weights_are_refused():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 16))
    with torch.no_grad():
        model[0].weight[:8] = 1e-9
    with pytest.raises(RunFault, match=r"512 of 5,200 weights become zero in fp16, at most 1% expected"):
        halve(*_case(model))


def test_what_no_island_can_save_is_refused():
    """Embeddings that the reference does not have, whatever the arithmetic."""
    traced, rows, reference = _case(nn.Sequential(nn.Linear(WIDTH, 16)))
    with pytest.raises(RunFault, match=r"true fp16: least cosine .* at least 0\.999 expected"):
        halve(traced, rows, -reference)


def test_masks_are_finite_and_not_taken_for_activations():
    class Masked(nn.Module):
        def forward(self, x):
            scores = x @ x.transpose(-1, -2)
            mask = torch.full(scores.shape[-2:], torch.finfo(torch.float32).min).triu(1)
            return ((scores + mask).softmax(-1) @ x).mean(1)

    model, rows = Masked(), torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    traced = trace(model, rows[:2], {0: torch.export.Dim("batch")})
    masked = {node.name for node in masked_nodes(traced)}
    assert masked and not any("softmax" in name for name in masked)
    largest = largest_values(traced, rows)
    exact = (rows @ rows.transpose(-1, -2)).abs().max().item()
    assert max(largest.values()) == pytest.approx(exact), "the mask's own numbers are no activations"
    assert torch.equal(traced(rows), model(rows)), "what is masked is exactly nothing, finite or not"
    assert Mixed(traced)(rows).isfinite().all() and MASKED in _scalars(traced)


def _scalars(traced):
    return [a for node in traced.graph.nodes for a in node.args if isinstance(a, float)]


def test_true_fp16_rounds_after_every_operation():
    """Mixed without islands is what a module in half precision computes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU(), nn.Linear(WIDTH, 16)).eval()
    traced, rows, _ = _case(model)
    found = Mixed(traced)(rows)
    with torch.inference_mode():
        assert found.dtype == torch.float16 and torch.equal(found, model.half()(rows.half()))


def test_local_errors_point_at_the_operation_that_loses():
    traced, rows, _ = _case(Outlier())
    errors = {where(n): local_errors(traced, rows).get(n.name) for n in traced.graph.nodes if n.op == "call_function"}
    assert errors["norm: pow"] == float("inf") and errors["last: linear"] < 1e-3
