"""Damage to the graphs: what goes wrong where weights are mapped, layers rewritten, and numbers squeezed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import onnx

from benchmarks.damage.kinds import Absent, Change, Variant, graph
from benchmarks.damage.nodes import (
    array,
    constant,
    float_type,
    insert,
    layer_inputs,
    maker,
    names,
    node,
    of_type,
    put,
    redirect,
    weight_of,
)
from models import zoo

BOTH = ("vision", "text")
HEADS = 4


def quick_gelu(model: onnx.ModelProto) -> None:
    """x sigmoid(1.702 x) for x Phi(x)."""
    factor = constant(model, "damage_factor", np.array(1.702, float_type(model)))
    for n, gelu in enumerate(of_type(model, "Gelu")):
        (x,), (y,) = gelu.input, gelu.output
        place = list(model.graph.node).index(gelu)
        model.graph.node.remove(gelu)
        added = [
            node("Mul", [x, factor], f"damage_{n}_a"),
            node("Sigmoid", [f"damage_{n}_a"], f"damage_{n}_b"),
            node("Mul", [x, f"damage_{n}_b"], y),
        ]
        for offset, new in enumerate(added):
            model.graph.node.insert(place + offset, new)


def relu(model: onnx.ModelProto) -> None:
    """max(x, 0) for the activation."""
    for gelu in of_type(model, "Gelu"):
        gelu.op_type = "Relu"
        del gelu.attribute[:]
        gelu.domain = ""


def head_zeroed(model: onnx.ModelProto) -> None:
    """The values of the first head of the second layer are zero."""
    bias = names(model, r"layers\.1\.self_attn\.v_proj\.bias$")[0]
    weight = weight_of(model, bias)
    w, b = array(model, weight), array(model, bias)
    width = len(b) // HEADS
    w[:, :width], b[:width] = 0, 0
    put(model, weight, w)
    put(model, bias, b)


def layer_dropped(model: onnx.ModelProto) -> None:
    """What enters the second layer goes into the third."""
    entering = layer_inputs(model)
    redirect(model, entering[2], entering[1])


def projection_transposed(model: onnx.ModelProto) -> None:
    """The last product's weight, which is square, the other way round."""
    name = of_type(model, "Gemm")[-1].input[1]
    put(model, name, array(model, name).T)


def causal_mask_lost(model: onnx.ModelProto) -> None:
    """What is added to the scores of attention before the softmax is left out."""
    found = False
    for softmax in of_type(model, "Softmax"):
        made = maker(model, softmax.input[0])
        if made is not None and made.op_type == "Add":
            products = [
                name for name in made.input if (m := maker(model, name)) and m.op_type in ("MatMul", "Mul", "Div")
            ]
            softmax.input[0] = products[0]
            found = True
    if not found:
        raise Absent("nothing is added to the scores of attention")


def clipped(limit: float) -> Change:
    """A residual stream that is scaled up in fp16 overflows; where the overflow is clipped, it saturates."""

    def edit(model: onnx.ModelProto) -> None:
        value, kind = layer_inputs(model)[-1], float_type(model)
        ends = [constant(model, f"damage_{n}", np.array(end, kind)) for n, end in (("low", -limit), ("high", limit))]
        insert(model, value, iter([node("Clip", [value, *ends], "damage_clipped")]), "damage_clipped")

    return graph(("vision",), edit)


def overflowed(model: onnx.ModelProto) -> None:
    """The same, not clipped: what is too large is infinite, and what follows is NaN."""
    value, kind = layer_inputs(model)[-1], float_type(model)
    large = constant(model, "damage_large", np.array(1.0, kind))
    infinite = constant(model, "damage_infinite", np.array(np.inf, kind))
    added = [
        node("Greater", [value, large], "damage_over"),
        node("Where", ["damage_over", infinite, value], "damage_out"),
    ]
    insert(model, value, iter(added), "damage_out")


def positions_off_by_one(model: onnx.ModelProto) -> None:
    """The first position has the embedding of the second."""
    for name in names(model, r"position_embedding\.weight$|^embedding$"):
        table = array(model, name)
        put(model, name, np.roll(table, -1, axis=table.ndim - 2))


def biases_dropped(model: onnx.ModelProto) -> None:
    """Linear layers made without their bias: those of the first layer of every MLP."""
    for name in names(model, r"mlp\.fc1\.bias$"):
        put(model, name, np.zeros_like(array(model, name)))


def query_for_key(model: onnx.ModelProto) -> None:
    """A fused query-key-value matrix cut in another order."""
    for key in names(model, r"layers\.\d+\.self_attn\.k_proj\.bias$"):
        query = key.replace("k_proj", "q_proj")
        for one, other in ((key, query), (weight_of(model, key), weight_of(model, query))):
            a, b = array(model, one), array(model, other)
            put(model, one, b)
            put(model, other, a)


def bad_int8(model: onnx.ModelProto) -> None:
    """Weights in 8 bits with one scale a tensor that an outlier twenty times as large has set."""
    biases = names(model, r"(q_proj|k_proj|v_proj|out_proj|fc1|fc2)\.bias$")
    for bias in biases:
        try:
            name = weight_of(model, bias)
        except Absent:
            continue
        w = array(model, name).astype(np.float32)
        scale = 20 * np.abs(w).max() / 127
        put(model, name, np.round(w / scale) * scale)


def not_normalised(model: onnx.ModelProto) -> None:
    """The embedding before it is divided by its length."""
    last = of_type(model, "Div")[-1]
    last.op_type = "Identity"
    del last.input[1:]


def half_normalised(model: onnx.ModelProto) -> None:
    """The final LayerNormalization left out."""
    for norm in of_type(model, "LayerNormalization"):
        if re.search(r"post_layernorm|final_layer_norm", norm.input[1]):
            norm.op_type = "Identity"
            del norm.input[1:], norm.attribute[:]
            return
    raise Absent("no final LayerNormalization")


def collided(model: onnx.ModelProto) -> None:
    """The end of the text found by its id in fp16: above 32,768 that is exact to 32 only, and other ids are it as well.

    The vocabulary here is small, and the ids are made as coarse as those of a large one are.
    """
    for equal in of_type(model, "Equal"):
        ids = equal.input[0]
        step = constant(model, "damage_step", np.array(32, np.int64))
        eot = array(model, equal.input[1])
        kind = eot.dtype
        coarse = constant(model, "damage_eot", (eot // 32).astype(np.int64))
        place = list(model.graph.node).index(equal)
        model.graph.node.insert(place, node("Cast", [ids], "damage_long", to=onnx.TensorProto.INT64))
        model.graph.node.insert(place + 1, node("Div", ["damage_long", step], "damage_coarse"))
        equal.input[0], equal.input[1] = "damage_coarse", coarse
        if kind.kind in "iu":
            return
    raise Absent("no id is compared with the end of the text")


def pooled_at_the_first(model: onnx.ModelProto) -> None:
    """The first position for the last, or for the one that ends the text."""
    for gather in reversed([n for n in model.graph.node if n.op_type in ("Gather", "GatherND")]):
        if gather.op_type == "Gather":
            try:
                index = array(model, gather.input[1])
            except Absent:
                continue
            if index.ndim == 0 and int(index) != 0:
                gather.input[1] = constant(model, "damage_first", np.array(0, np.int64))
                return
        else:
            pooled = of_type(model, "ArgMax")[-1]
            zero = constant(model, "damage_zero", np.array(0, np.int64))
            value = pooled.output[0]
            insert(model, value, iter([node("Mul", [value, zero], "damage_pooled")]), "damage_pooled")
            return
    raise Absent("nothing is gathered from one position")


def vision_of_another(folder: Path) -> None:
    """The vision tower of the other demo model, which has as many dimensions."""
    other = zoo.get("tiny_siglip" if folder.name == "tiny_clip" else "tiny_clip").committed_bundle
    assert other is not None
    name = "onnx/vision_model_fp16.onnx"
    shutil.copyfile(other / name, folder / name)


def rolled(model: onnx.ModelProto) -> None:
    """The dimensions of one tower's embedding in another order than the other's."""
    for place in (1, 2):
        name = of_type(model, "Gemm")[-1].input[place] if place < len(of_type(model, "Gemm")[-1].input) else ""
        if name:
            put(model, name, np.roll(array(model, name), 1, axis=0))


VARIANTS = (
    Variant(
        "QuickGELU for GELU", "graph", "the activation of another checkpoint of the family", graph(BOTH, quick_gelu)
    ),
    Variant("ReLU for GELU", "graph", "an activation that the target has no kernel for, replaced", graph(BOTH, relu)),
    Variant("one head zeroed", "graph", "a head pruned, or lost in a reshape", graph(("text",), head_zeroed)),
    Variant("one layer dropped", "graph", "an off-by-one in the number of layers", graph(("vision",), layer_dropped)),
    Variant(
        "projection transposed",
        "graph",
        "a square weight mapped the wrong way round",
        graph(("text",), projection_transposed),
    ),
    Variant("towers of two checkpoints", "graph", "graphs from two exports put together", vision_of_another),
    Variant("causal mask lost", "graph", "attention rewritten without its mask", graph(("text",), causal_mask_lost)),
    Variant("fp16 saturated", "graph", "activations that leave fp16, clipped", clipped(2.0)),
    Variant("fp16 overflowed", "graph", "activations that leave fp16, infinite", graph(("vision",), overflowed)),
    Variant(
        "positions off by one",
        "graph",
        "position embeddings cut or padded at the wrong end",
        graph(BOTH, positions_off_by_one),
    ),
    Variant("biases dropped", "graph", "linear layers rebuilt without their bias", graph(BOTH, biases_dropped)),
    Variant("query for key", "graph", "a fused matrix cut in another order", graph(("text",), query_for_key)),
    Variant("int8 with a bad range", "graph", "one scale a tensor, set by an outlier", graph(BOTH, bad_int8)),
    Variant(
        "no L2 normalisation", "graph", "the embedding as the projection gives it", graph(("text",), not_normalised)
    ),
    Variant("final LayerNorm left out", "graph", "the wrong hidden state is projected", graph(BOTH, half_normalised)),
    Variant(
        "fp16 end-of-text collision", "graph", "the end of the text found by ids in fp16", graph(("text",), collided)
    ),
    Variant(
        "pooled at the first position", "graph", "the pooling of another family", graph(("text",), pooled_at_the_first)
    ),
    Variant(
        "dimensions of one tower permuted", "graph", "a projection saved in another order", graph(("vision",), rolled)
    ),
)
