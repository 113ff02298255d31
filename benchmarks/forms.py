"""What an opset and a form of attention give: `python benchmarks/forms.py --model KEY --tower vision [--provider cpu]`.

The tower, with seeded random weights, is exported in every form, and all of them are timed in turns on the same input.
Exporter and runtime are the project's own; only the opset, and whether attention is left to PyTorch's fused function,
are exchanged.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from unittest.mock import patch

sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import onnxruntime as ort
import torch
import typer
from numpy.typing import NDArray
from torch import nn

from exporter import graph as graph_module
from exporter import trace as trace_module
from exporter.graph import example_of, export_graph
from exporter.load import load_original
from exporter.mixed import Mixed
from exporter.towers import towers_of
from exporter.trace import trace
from lgip_ort.atomic import write_json
from lgip_ort.provider import choose
from lgip_ort.speed.rounds import Group, Work, take_turns
from models import zoo

SECONDS = 2.0
"""That a form takes in a round."""


class Form(NamedTuple):
    """An opset, and attention as the exporter writes it or as PyTorch's fused function."""

    opset: int
    attention: Literal["plain", "fused"]


FORMS = (Form(18, "plain"), Form(20, "plain"), Form(23, "plain"), Form(23, "fused"))


def main(
    model: Annotated[str, typer.Option(help="A key of the zoo, of a model of transformers.")] = "siglip_base",
    tower: Annotated[str, typer.Option(help="vision or text.")] = "vision",
    precision: Annotated[str, typer.Option(help="fp32 or fp16, without islands.")] = "fp32",
    provider: Annotated[str, typer.Option(help="As for bench.py.")] = "cpu",
    batch: Annotated[int, typer.Option(min=1, help="Images, or texts of 16 tokens.")] = 16,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    out: Annotated[Path | None, typer.Option(help="Write the result there, too.")] = None,
) -> None:
    """Print, as JSON, every form with its operators, before and after ONNX Runtime's optimiser, and its speed."""
    with tempfile.TemporaryDirectory(prefix="lgip-ort-") as name:
        folder = Path(name)
        sessions: dict[Form, ort.InferenceSession] = {}
        operators: dict[Form, dict[str, Any]] = {}
        batches: dict[str, NDArray[Any]] = {}
        for form in FORMS:
            place = folder / f"{form.opset}-{form.attention}"
            graph, batches = export(model, tower, precision, form, batch, place)
            options = ort.SessionOptions()
            options.log_severity_level = 3
            options.optimized_model_filepath = str(place / "optimised.onnx")
            sessions[form] = choose(provider).session(graph, options)
            operators[form] = {"exported": count(graph), "optimised": count(place / "optimised.onnx")}
        vectors = {form: session.run(None, batches)[0] for form, session in sessions.items()}
        works = {str(form): partial(work, session, batches, batch) for form, session in sessions.items()}
        timings, _ = take_turns([Group(works, SECONDS, batch)], rounds)
    first = FORMS[0]
    rows = [
        {
            **form._asdict(),
            "per_second": timings[str(form)].rate,
            "ratio": float(np.median(timings[str(form)].against(timings[str(first)]))),
            "difference": float(np.abs(vectors[form] - vectors[first]).max()),
            **operators[form],
        }
        for form in FORMS
    ]
    asked = {"model": model, "tower": tower, "precision": precision, "provider": provider, "batch": batch}
    result = asked | {"against": first._asdict(), "forms": rows}
    print(json.dumps(result, indent=2))
    if out is not None:
        write_json(out, result)


def export(
    model: str, kind: str, precision: str, form: Form, batch: int, folder: Path
) -> tuple[Path, dict[str, NDArray[Any]]]:
    """The graph of a tower in a form, and a batch for it."""
    spec = zoo.get(model)
    original = load_original(spec, "random")
    if form.attention == "fused":  # the library's own default; the exporter asks it for the plain one
        original.model.set_attn_implementation("sdpa")
    tower = getattr(towers_of(original), kind)
    size = spec.image_size
    example, dynamic, _ = example_of(tower, size)
    with patch.object(graph_module, "OPSET", form.opset), attention(form):
        traced = trace(tower.encoder, example, dynamic)
        tower.encoder = Mixed(traced, torch.float32 if precision == "fp32" else torch.float16)
        graph = export_graph(tower, size, "fp32" if precision == "fp32" else "fp16", [], folder)
    draw = np.random.default_rng(0)
    if kind == "vision":
        return folder / graph.file, {"pixel_values": draw.normal(size=(batch, 3, size, size)).astype(np.float32)}
    return folder / graph.file, {"input_ids": draw.integers(3, 400, (batch, 16))}


@contextlib.contextmanager
def attention(form: Form) -> Iterator[None]:
    """Tracing with attention in a form."""
    fused: Callable[..., Any] = nn.functional.scaled_dot_product_attention
    if form.attention == "plain":
        yield
        return
    with patch.object(trace_module, "_attention", fused):
        yield


def count(graph: Path) -> dict[str, int]:
    """How often each operator occurs."""
    import onnx

    nodes = onnx.load(graph, load_external_data=False).graph.node
    return dict(Counter(node.op_type for node in nodes).most_common())


def work(session: ort.InferenceSession, batches: dict[str, NDArray[Any]], batch: int, size: int) -> Work:
    """So many images or texts, batch by batch."""
    return Work([partial(session.run, None, batches)] * (size // batch), size)


if __name__ == "__main__":
    typer.run(main)
