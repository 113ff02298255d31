"""The two towers as modules of one shape, whichever library the model comes from.

    VisionTower: pixel_values float32 (batch, 3, size, size) -> image_embeds float32 (batch, dim)
    TextTower:   input_ids int64 (batch, sequence)           -> text_embeds float32 (batch, dim)

Rows of both have L2 norm 1, computed in fp32 whatever the precision of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from exporter.load import Original
from lgip_ort.errors import UsageFault

MASKED = -30_000.0
"""Added to the score of a future token: finite in fp16 even with a score added, and exp() of it is exactly 0."""


class VisionTower(nn.Module):
    """pixel_values float32 (batch, 3, size, size) -> image_embeds float32 (batch, dim)."""

    input_name = "pixel_values"
    output_name = "image_embeds"

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, pixel_values: Tensor) -> Tensor:
        return _unit(self.encoder(pixel_values))


class TextTower(nn.Module):
    """input_ids int64 (batch, sequence) -> text_embeds float32 (batch, dim).

    `any_length`: True where the tower is causal and pools at the end-of-text token, so that what follows that token,
    padding included, changes nothing.
    """

    input_name = "input_ids"
    output_name = "text_embeds"

    def __init__(self, encoder: nn.Module, context_length: int, any_length: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.context_length = context_length
        self.any_length = any_length

    def forward(self, input_ids: Tensor) -> Tensor:
        return _unit(self.encoder(input_ids))


@dataclass
class Pair:
    """Both towers of a model. They share their parameters with `original.model`, whose attention they rewrite."""

    original: Original
    vision: VisionTower
    text: TextTower
    dim: int
    activation: dict[str, str]


def towers_of(original: Original) -> Pair:
    """The towers of an original, in eval mode. Raises UsageFault where its text tower is of no known kind."""
    model: Any = original.model
    if original.spec.library == "open_clip":
        source = model.text if hasattr(model, "text") else model
        _write_attention_plainly(model)
        vision = VisionTower(model.visual)
        encoder = _open_clip_text(source, original.spec.key)
        text = TextTower(encoder, source.context_length, any_length=encoder.causal)
        projection = source.text_projection
        dim = projection.out_features if isinstance(projection, nn.Linear) else projection.shape[-1]
    else:
        config = model.config
        causal = config.model_type == "clip"
        vision = VisionTower(_Pooled(model.vision_model, getattr(model, "visual_projection", None)))
        encoder = _Pooled(model.text_model, getattr(model, "text_projection", None))
        text = TextTower(encoder, config.text_config.max_position_embeddings, any_length=causal)
        dim = config.projection_dim if causal else config.text_config.projection_size
    activation = {"vision": _activation(vision), "text": _activation(text)}
    return Pair(original, vision.eval(), text.eval(), int(dim), activation)


class _Pooled(nn.Module):
    """A transformers tower: its pooled output, projected where the model has a projection."""

    def __init__(self, tower: nn.Module, projection: nn.Module | None) -> None:
        super().__init__()
        self.tower = tower
        self.projection = projection or nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.projection(self.tower(inputs).pooler_output)


def _open_clip_text(source: Any, key: str) -> _OpenClipText:
    """open_clip's text tower as a module of its own. Raises UsageFault where it is of no known kind."""
    pool = getattr(source, "pool_type", None) or getattr(source, "text_pool_type", None)
    projected = isinstance(getattr(source, "text_projection", None), (nn.Linear, nn.Parameter))
    plain = projected and getattr(source, "cls_emb", None) is None and not getattr(source, "use_pad_mask", False)
    causal = getattr(source, "attn_mask", None) is not None
    if plain and causal and pool == "argmax" and isinstance(source.text_projection, nn.Parameter):
        return _OpenClipText(source, causal=True)
    if plain and not causal and pool == "last":
        return _OpenClipText(source, causal=False)
    raise UsageFault(
        f"{key}: {'causal' if causal else 'not causal'} text tower {type(source).__name__} pooled by {pool!r} found, "
        "a causal one pooled by 'argmax', or one that is not and pooled by 'last', expected"
    )


class _OpenClipText(nn.Module):
    """open_clip's text tower at the length of its input.

    `causal`: a token sees what stands before it, by a finite mask, and the end-of-text token is the text. Otherwise,
    in SigLIP's, every token sees every other, padding included, and the last one is the text.
    """

    def __init__(self, source: Any, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.token_embedding = source.token_embedding
        self.positional_embedding = source.positional_embedding
        self.transformer = source.transformer
        self.ln_final = source.ln_final
        self.text_projection = source.text_projection
        length = source.positional_embedding.shape[0]
        self.register_buffer("mask", torch.full((length, length), MASKED).triu(1), persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        x = self.token_embedding(input_ids) + self.positional_embedding[:length]
        x = self.ln_final(self.transformer(x, attn_mask=self.mask[:length, :length] if self.causal else None))
        if self.causal:
            # The end-of-text token has the highest id. int32: not every provider has ArgMax over int64, and fp16 can't
            # tell 49406 from 49407.
            end = input_ids.to(torch.int32).argmax(dim=-1)
            x = x[torch.arange(x.shape[0], device=x.device), end]
        else:
            x = x[:, -1]
        projection = self.text_projection
        return projection(x) if isinstance(projection, nn.Linear) else x @ projection


class _SelfAttention(nn.Module):
    """Self-attention with the parameters and the call of an nn.MultiheadAttention.

    That module's own form puts the sequence first and packs the heads; ONNX Runtime 1.31 crashes while it optimises the
    transposes that this leaves in a graph, and half of the operators are not needed.
    """

    def __init__(self, source: nn.MultiheadAttention) -> None:
        super().__init__()
        self.heads = source.num_heads
        self.in_proj_weight = source.in_proj_weight
        self.in_proj_bias = source.in_proj_bias
        self.out_proj = source.out_proj

    def forward(
        self, x: Tensor, key: Tensor, value: Tensor, need_weights: bool = False, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, None]:
        batch, length, width = x.shape
        packed = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        q, k, v = (part.reshape(batch, length, self.heads, -1).transpose(1, 2) for part in packed)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask)
        return self.out_proj(mixed.transpose(1, 2).reshape(batch, length, width)), None


def _write_attention_plainly(model: nn.Module) -> None:
    """Put _SelfAttention in the place of every nn.MultiheadAttention of open_clip's residual blocks."""
    from open_clip.transformer import ResidualAttentionBlock

    for block in model.modules():
        if isinstance(block, ResidualAttentionBlock) and isinstance(block.attn, nn.MultiheadAttention):
            if hasattr(block, "ln_1_kv") or not block.attn.batch_first:
                raise UsageFault("open_clip block with cross-attention found, self-attention over batches expected")
            block.attn = _SelfAttention(block.attn)


def _unit(x: Tensor) -> Tensor:
    x = x.float()
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def _activation(tower: nn.Module) -> str:
    """Names of the activations inside `tower`, as their classes are called, `tanh` added where GELU is approximated."""
    found = set()
    for module in tower.modules():
        name = type(module).__name__
        if isinstance(module, nn.GELU) and module.approximate != "none":
            name += "(tanh)"
        if "GELU" in name.upper() or "SiLU" in name or name == "ReLU":
            found.add(name)
    return ", ".join(sorted(found))
