"""The two architectures with the initial weights that let them learn from a few thousand small batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from models.demo.recipe import Recipe

EXPLAINED = 2e-3
"""Added to every variance before whitening, so that directions of nearly no variance are not blown up."""


def build(recipe: Recipe, entries: int, start: int | None, end: int) -> Any:
    """A CLIPModel or SiglipModel of the recipe's size for a vocabulary of `entries`, in float32.

    `end` is both the end-of-text and the padding id. CLIP's configuration must name the real one: the default, 2,
    makes the library pool at the highest id instead of the first end-of-text token.
    """
    from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel

    torch.manual_seed(recipe.seed)
    vision = {**recipe.tower, **recipe.vision}
    text = {
        **recipe.tower,
        **recipe.text,
        "vocab_size": entries,
        "max_position_embeddings": recipe.length,
        "bos_token_id": start,
        "eos_token_id": end,
        "pad_token_id": end,
    }
    # Eager attention is twice as fast as the fused one on a processor at these sizes.
    if recipe.kind == "clip":
        both = {"hidden_act": "gelu", "projection_dim": recipe.tower["hidden_size"]}
        config = CLIPConfig(
            text_config={**text, **both}, vision_config={**vision, **both}, projection_dim=both["projection_dim"]
        )
        return CLIPModel._from_config(config, attn_implementation="eager")
    config = SiglipConfig(text_config={**text, "projection_size": recipe.tower["hidden_size"]}, vision_config=vision)
    model = SiglipModel._from_config(config, attn_implementation="eager")
    scale_residuals(model)
    with torch.no_grad():
        model.logit_scale.fill_(math.log(10))
        model.logit_bias.fill_(-10)
    return model


@torch.no_grad()
def scale_residuals(model: Any) -> None:
    """Let SigLIP's blocks start small beside the embeddings they add to.

    Its towers have no normalisation before the first block: at the library's initial scale the blocks drown the
    token embeddings, and the sentences all look alike for most of a short training.
    """
    for tower in (model.vision_model, model.text_model):
        factor = (2 * len(tower.encoder.layers)) ** -0.5
        for layer in tower.encoder.layers:
            layer.self_attn.out_proj.weight.mul_(factor)
            layer.mlp.fc2.weight.mul_(factor)
    model.text_model.embeddings.token_embedding.weight.mul_(4)
    model.text_model.embeddings.position_embedding.weight.mul_(3)


def random_patches(images: np.ndarray, side: int, rng: np.random.Generator) -> np.ndarray:
    """36,000 patches at random places, shape (patches, 3 * side * side), channels first, from -1 to 1."""
    patches = []
    for index in rng.integers(0, len(images), 1500):
        image = images[index]
        for top, left in rng.integers(0, image.shape[0] - side + 1, (24, 2)):
            patches.append(image[top : top + side, left : left + side].transpose(2, 0, 1).ravel())
    return np.stack(patches) / 127.5 - 1


def sine_positions(rows: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Sines and cosines of row and column, randomly rotated, shape (rows * rows, width).

    The rotation spreads the position over all components, so that it does not sit on the few strongest of the patches.
    """
    quarter = width // 4
    rates = np.pi / 2 * 30.0 ** -(np.arange(quarter) / quarter)
    down, across = (axis.reshape(-1, 1) * rates for axis in np.mgrid[:rows, :rows])
    waves = np.concatenate([np.sin(down), np.cos(down), np.sin(across), np.cos(across)], axis=1)
    rotation, _ = np.linalg.qr(rng.normal(size=(width, width)))
    return waves @ rotation


@torch.no_grad()
def see_patches(model: Any, images: np.ndarray, scale: float, rng: np.random.Generator) -> None:
    """Start the patch embedding as whitened principal components, and positions as sines of the same scale.

    With the library's initial weights the towers see brightness long before they see shape: object and count stay
    near chance. `images` has shape (scenes, pixels, pixels, 3), uint8.
    """
    embeddings = model.vision_model.embeddings
    convolution = embeddings.patch_embedding
    width, _, side, _ = convolution.weight.shape
    patches = random_patches(images, side, rng)
    variances, directions = np.linalg.eigh(np.cov(patches.T))
    strongest = np.argsort(-variances)[:width]
    whiten = (directions[:, strongest] / np.sqrt(variances[strongest] + EXPLAINED)).T * scale
    convolution.weight.copy_(torch.tensor(whiten).view_as(convolution.weight))
    if convolution.bias is not None:
        convolution.bias.copy_(torch.tensor(-whiten @ patches.mean(0)))
    positions = torch.tensor(sine_positions(images.shape[1] // side, width, rng) * scale)
    table = embeddings.position_embedding.weight
    # CLIP's first position belongs to the class token.
    table.zero_()
    table[len(table) - len(positions) :] = positions


def prepare(pixels: np.ndarray) -> torch.Tensor:
    """Images (n, height, width, 3) uint8 as the towers take them: (n, 3, height, width) float32 from -1 to 1."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))).float() / 127.5 - 1


def embed_images(model: Any, pixels: np.ndarray) -> torch.Tensor:
    """L2-normalised image embeddings, shape (n, width), float32."""
    return functional.normalize(model.get_image_features(pixel_values=prepare(pixels)).float(), dim=-1)


def embed_texts(model: Any, ids: np.ndarray) -> torch.Tensor:
    """L2-normalised text embeddings of token ids (n, length), shape (n, width), float32."""
    features = model.get_text_features(input_ids=torch.from_numpy(ids.astype(np.int64)))
    return functional.normalize(features.float(), dim=-1)


def softmax_loss(similarity: torch.Tensor) -> torch.Tensor:
    """CLIP's loss of scaled similarities (n, n): each image picks its text, each text its image."""
    pairs = torch.arange(len(similarity))
    return (functional.cross_entropy(similarity, pairs) + functional.cross_entropy(similarity.T, pairs)) / 2


def sigmoid_loss(similarity: torch.Tensor, bias: torch.Tensor | float) -> torch.Tensor:
    """SigLIP's loss of scaled similarities (n, n): every image and text is a yes-or-no question."""
    signs = 2 * torch.eye(len(similarity)) - 1
    return -functional.logsigmoid(signs * (similarity + bias)).sum(-1).mean()


@torch.no_grad()
def best_bias(similarity: torch.Tensor) -> float:
    """The bias, to a quarter, that makes the sigmoid loss of these scaled similarities least."""
    candidates = np.arange(-30, 0.25, 0.25)
    return float(min(candidates, key=lambda bias: sigmoid_loss(similarity, float(bias)).item()))
