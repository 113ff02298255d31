"""Train a demo model: `python models/demo/train.py --model tiny_clip|tiny_siglip`."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):
    # Run as a file: the project is found from the root, and no file of this folder hides a package of its name.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse
import json
import math
import time
from typing import Any

import numpy as np
import torch

from models.demo import DEV_SEED, HELD_OUT, IMAGES, ROOT, TRAIN_SEED, corpus, evaluate, recipe, towers, vocab
from models.demo.recipe import Recipe

CACHE = Path("~/.cache/lgip-ort/demo").expanduser()
CLIP_SCALE_LIMIT = math.log(100)


def tokenizer(plan: Recipe, texts: list[str], folder: Path) -> Any:
    """The model's tokenizer, trained on the training captions into `folder`."""
    train = vocab.train_clip_bpe if plan.kind == "clip" else vocab.train_sentencepiece
    train(texts, plan.vocabulary, plan.length, folder)
    return vocab.load(plan.kind, folder)


def optimizer(model: Any, plan: Recipe) -> torch.optim.AdamW:
    """AdamW; weight decay for the matrices between layers, none for embeddings, norms, biases and the logit scale."""
    decayed: list[torch.nn.Parameter] = []
    free: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (decayed if parameter.ndim > 1 and "embed" not in name else free).append(parameter)
    groups = [{"params": decayed, "weight_decay": plan.weight_decay}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=plan.betas, fused=True)


def rate(step: int, plan: Recipe) -> float:
    """Learning rate at a step: a linear warm-up, then a cosine."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / plan.steps))
    share = plan.final_rate + (1 - plan.final_rate) * cosine
    return plan.learning_rate * min(1.0, (step + 1) / plan.warmup) * share


class Trainer:
    """One training: the model, its optimizer, and the scenes and token ids it draws from."""

    def __init__(self, plan: Recipe, scenes: corpus.Corpus, ids: np.ndarray, model: Any, checkpoint: Path) -> None:
        self.plan, self.scenes, self.ids, self.model, self.checkpoint = plan, scenes, ids, model, checkpoint
        self.optimizer = optimizer(model, plan)
        self.batches = corpus.Batches(scenes, plan.batch, plan.similar_batches, plan.seed)
        self.step = 0

    def resume(self) -> None:
        """Take up the training where its last checkpoint left it."""
        state = torch.load(self.checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def save(self) -> None:
        """Write a checkpoint; one that is cut short never replaces a whole one."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.checkpoint)

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Images (batch, SIZE, SIZE, 3) and token ids (batch, length) of this step, one caption an image."""
        rng = self.batches.rng(self.step)
        chosen = self.batches.indices(rng)
        pixels = self.scenes.pixels[chosen]
        mirrored = rng.random(len(chosen)) < self.plan.mirrored
        pixels[mirrored] = pixels[mirrored][:, :, ::-1]
        ids = self.ids[chosen, rng.integers(0, self.ids.shape[1], len(chosen))]
        if self.plan.kind == "clip":
            # CLIP's text tower is causal and pools at the end of the text: what comes after it changes nothing.
            end = self.model.config.text_config.eos_token_id
            ids = ids[:, : int((ids == end).argmax(1).max()) + 1]
        return pixels, ids

    def loss(self, similarity: torch.Tensor) -> torch.Tensor:
        """The loss of this step; the sigmoid one starts with the bias that fits the similarities so far."""
        switch = int(self.plan.sigmoid_from * self.plan.steps)
        if self.step < switch:
            return towers.softmax_loss(similarity)
        if self.step == switch:
            with torch.no_grad():
                self.model.logit_bias.fill_(towers.best_bias(similarity.detach()))
        return towers.sigmoid_loss(similarity, self.model.logit_bias)

    def advance(self) -> float:
        """Do one step; return its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.step, self.plan)
        pixels, ids = self.batch()
        with torch.autocast("cpu", torch.bfloat16):
            images, texts = towers.embed_images(self.model, pixels), towers.embed_texts(self.model, ids)
        loss = self.loss(images @ texts.T * self.model.logit_scale.exp())
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip_norm)
        self.optimizer.step()
        with torch.no_grad():
            self.model.logit_scale.clamp_(max=CLIP_SCALE_LIMIT)
        self.step += 1
        return loss.item()

    def run(self, watch: Any) -> None:
        """Train to the end, saving checkpoints and printing progress; `watch` returns a line about the model."""
        first, began, smooth = self.step, time.monotonic(), math.nan
        while self.step < self.plan.steps:
            loss = self.advance()
            smooth = loss if math.isnan(smooth) else 0.97 * smooth + 0.03 * loss
            if self.step % 100 == 0:
                each = (time.monotonic() - began) / (self.step - first)
                left = each * (self.plan.steps - self.step) / 60
                print(
                    f"step {self.step}/{self.plan.steps} loss {smooth:.3f} "
                    f"scale {self.model.logit_scale.exp().item():.1f} {1 / each:.2f} steps/s {left:.1f} min left",
                    flush=True,
                )
            if self.step % self.plan.checkpoint_every == 0:
                self.save()
            if self.step % self.plan.evaluate_every == 0 or self.step == self.plan.steps:
                print(f"  development scenes: {watch()}", flush=True)


def export(model: Any, plan: Recipe, folder: Path) -> None:
    """Write the weights in fp16, and how the library is to prepare images, beside the tokenizer in `folder`."""
    from transformers import CLIPImageProcessor, SiglipImageProcessor

    side = plan.vision["image_size"]
    square = {"height": side, "width": side}
    grey = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3}
    if plan.kind == "clip":
        processor = CLIPImageProcessor(size={"shortest_edge": side}, crop_size=square, **grey)
    else:
        processor = SiglipImageProcessor(size=square, do_convert_rgb=True, **grey)
    processor.save_pretrained(str(folder))
    model.half().save_pretrained(str(folder))


def published() -> tuple[np.ndarray, list[list[str]]]:
    """Pixels and captions of the published scenes, as they are read from their files."""
    from PIL import Image

    from models.demo import CAPTIONS

    annotations = json.loads(CAPTIONS.read_text("utf-8"))
    rows: dict[int, list[str]] = {entry["id"]: [] for entry in annotations["images"]}
    for entry in annotations["annotations"]:
        rows[entry["image_id"]].append(entry["caption"])
    pixels = np.stack([np.asarray(Image.open(IMAGES / entry["file_name"])) for entry in annotations["images"]])
    return pixels, list(rows.values())


def report(kind: str, folder: Path) -> dict[str, float]:
    """The profile of the written weights on the published scenes, in float32."""
    from transformers import CLIPModel, SiglipModel

    model = (CLIPModel if kind == "clip" else SiglipModel).from_pretrained(str(folder)).float().eval()
    words = vocab.load(kind, folder)
    pixels, captions = published()
    return evaluate.profile(model, lambda texts: vocab.encode(words, texts), pixels, captions, seed=0)


def show(found: dict[str, float]) -> str:
    """A profile on one line."""
    return ", ".join(f"{name} {value:.3f}" for name, value in found.items())


def main() -> None:
    """Parse the command line, train, write the weights, print the profile on the published scenes."""
    plans = recipe.load()
    parser = argparse.ArgumentParser(description="Train a demo model.")
    parser.add_argument("--model", required=True, choices=plans)
    parser.add_argument("--out", type=Path, help="folder of the weights (default: the committed ones)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where training scenes and checkpoints are kept")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--evaluate", action="store_true", help="only print the profile of the weights in --out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    plan = plans[options.model]
    folder = options.out or ROOT / options.model / "weights"
    if not options.evaluate:
        began = time.monotonic()
        scenes = corpus.load(TRAIN_SEED, plan.scenes, options.cache)
        development = corpus.load(DEV_SEED, HELD_OUT, options.cache)
        words = tokenizer(plan, scenes.texts(), folder)
        ids = vocab.encode(words, scenes.texts()).reshape(len(scenes.captions), -1, plan.length)
        model = towers.build(plan, len(words), words.bos_token_id, words.eos_token_id)
        towers.see_patches(model, scenes.pixels, plan.patch_scale, np.random.default_rng(plan.seed))
        trainer = Trainer(plan, scenes, ids, model, options.cache / f"{options.model}.checkpoint")
        if options.resume:
            trainer.resume()
        print(f"{options.model}: {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)

        def watch() -> str:
            model.eval()
            found = evaluate.profile(
                model,
                lambda texts: vocab.encode(words, texts),
                development.pixels,
                development.captions,
                seed=0,
            )
            model.train()
            return show(found)

        model.train()
        trainer.run(watch)
        export(model, plan, folder)
        print(f"trained in {(time.monotonic() - began) / 60:.1f} min", flush=True)
    print(f"published scenes: {show(report(plan.kind, folder))}")


if __name__ == "__main__":
    main()
