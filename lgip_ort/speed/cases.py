"""What is timed: the towers of a bundle, PyTorch's, whole runs, and plain products of matrices.

What goes in is made ready before any clock runs: decoded and preprocessed pixels, token ids. So images/s and texts/s
are a tower's own. A text that occurs twice is encoded twice. Whole runs alone are the way from files to scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lgip_ort.bundle import Bundle, Tower, choose_precision
from lgip_ort.dataset import Dataset, open_dataset
from lgip_ort.engine import Engine, OrtEngine
from lgip_ort.errors import UsageFault
from lgip_ort.execute import SHARD_IMAGES
from lgip_ort.image import ImageFault, Pixels, pixels_of, quiet, read_pixels
from lgip_ort.pairs import Wanted, parts_of
from lgip_ort.provider import PROVIDERS
from lgip_ort.score import Local
from lgip_ort.speed.roof import Product, flops
from lgip_ort.speed.rounds import Make, Work
from lgip_ort.stored import StoredTable, store
from lgip_ort.text import TextEncoder, TokenIds

TORCH_IMAGES = (8, 16, 32)
"""Batches that PyTorch is given images in: the fastest is what others are measured against."""

TORCH_TEXTS = 256
"""Texts, padded to the full length, that PyTorch is given in a batch."""

POOL = 64
"""Different images at most, used over and over."""

Arrays = Callable[[int], list[NDArray[Any]]]
"""What goes into a tower for so many images or texts, batch by batch."""


@dataclass(frozen=True)
class Case:
    """One way to do some work.

    what: images, texts, run or roof. engine: ort, torch, released, numpy. provider: key of a provider, or PyTorch's
    device. precision: a bundle's, or what PyTorch computes in; executed: what the arithmetic ran in. make: makes the
    work. arrays: of images and texts, what goes into the tower for so many, batch by batch. batch: images, or texts of
    full length, a call; size: the same in a word, for the name.
    """

    what: str
    engine: str
    provider: str
    precision: str
    executed: str
    make: Make
    arrays: Arrays | None = None
    batch: int | None = None
    size: str = ""

    @property
    def name(self) -> str:
        """What it is called in a table, and in JSON."""
        return f"{self.what} {self.engine}/{self.provider} {self.precision} {self.size}".strip()

    @property
    def device(self) -> str:
        """Where its tensors live."""
        return PROVIDERS[self.provider].device

    @property
    def arithmetic(self) -> str:
        """What it multiplies in, without how it came to that: `fp32` of `fp32 (cast)`."""
        return self.executed.split()[0]

    @property
    def single(self) -> bool:
        """Whether it takes one image or text at a time, for the latency."""
        return self.batch == 1

    @property
    def group(self) -> str:
        """Cases of one group do the same work: on another device it would take minutes, or no time at all.

        So it would with runs as the released scripts make them. A pair costs these the same however many there are,
        while our batches fill with the number of images: each side gets as many as it has time for.
        """
        if self.what == "roof":
            return self.name
        return f"{self.device} {self.what}{' single' * self.single}{' released' * (self.engine == 'released')}"


@dataclass(frozen=True)
class Rivals:
    """PyTorch on one device.

    engines: by what they compute in, `fp32` among them. products: of matrices. released: of a data root, images and the
    pairs on them, what scores these as the released scripts do. threads: that it computes with on a CPU.
    """

    device: str
    engines: Mapping[str, Engine]
    products: Sequence[Product]
    released: Callable[[Path, pl.DataFrame, pl.DataFrame], Callable[[], object]]
    threads: int


class Inputs:
    """What the cases work on, made ready: readable images with their captions as `dataset`, `pixels` of at least
    `least` images, float32 (n, 3, size, size), of which `distinct` differ, and `texts`, of absent images, too.

    Tables of pairs are written to `folder`. Raises UsageFault as `open_dataset` does, and where no image can be read.
    """

    def __init__(self, bundle: Bundle, data: str, available_only: bool, least: int, folder: Path) -> None:
        self.bundle, self._folder = bundle, folder
        self.encoder = TextEncoder(bundle)
        dataset = open_dataset(data, available_only)
        read: dict[str, Pixels] = {}
        with quiet():
            for image_id, path in dataset.images.select("image_id", "path").iter_rows():
                try:
                    read[image_id] = read_pixels(dataset.root / path, self._pixels)
                except ImageFault:
                    continue
                if len(read) == POOL:
                    break
        if not read:
            raise UsageFault(f"{data}: none of its images can be read")
        self.dataset = dataset.only(dataset.images.filter(pl.col("image_id").is_in(list(read))))
        found = list(read.values())
        self.pixels = np.stack([found[i % len(found)] for i in range(max(least, len(found)))])
        self.distinct = len(found)
        self.texts: list[str] = open_dataset(data, images=False).captions["text"].to_list()
        self._tables: dict[int, tuple[Dataset, StoredTable]] = {}

    def _pixels(self, image: Any) -> Pixels:
        return pixels_of(image, self.bundle.manifest.image)

    def spread(self, count: int) -> list[str]:
        """`count` texts, evenly out of all."""
        return [self.texts[i * len(self.texts) // count] for i in range(count)]

    def images(self, batch: int) -> Arrays:
        """Pixels in batches: of at least so many images as are asked for, so that all batches are full."""
        slices = len(self.pixels) // batch

        def cut(count: int) -> list[NDArray[Any]]:
            starts = [i % slices * batch for i in range(-(-count // batch))]
            return [self.pixels[start : start + batch] for start in starts]

        return cut

    def ids(self, cut: Callable[[list[str]], list[TokenIds]]) -> Arrays:
        """Token ids in batches as `cut` makes them."""
        return lambda count: list(cut(self.spread(count)))

    def runs(self, prepare: Callable[[Dataset, StoredTable], Callable[[], object]]) -> Make:
        """The work of scoring all pairs of so many images, by what `prepare` makes of them and their table."""

        def make(images: int) -> Work:
            dataset, table = self.table(images)
            return Work([prepare(dataset, table)], table.rows)

        return make

    def table(self, images: int) -> tuple[Dataset, StoredTable]:
        """The data set of the first so many images, and its table of suite `paper` on disk, as a run has it."""
        if images not in self._tables:
            dataset = self.dataset.head(images)
            parts = parts_of(Wanted(suite="paper"), dataset, "paper")
            self._tables[images] = dataset, store(parts, dataset.images, self._folder / f"{images}.parquet")
        return self._tables[images]


def ort_cases(provider: str, engine: OrtEngine, inputs: Inputs, batches: Sequence[int]) -> Iterator[Case]:
    """A bundle's engine on images in `batches`, on texts in batches of as many tokens as its own, on single ones, and
    on whole runs."""
    asked, executed = engine.stamp.precision["asked"], engine.stamp.precision["executed"]
    yield Case("run", "ort", provider, asked, executed, inputs.runs(partial(_score, engine)))

    def cut(texts: list[str]) -> list[TokenIds]:
        return [ids for _, ids in engine.batches(texts)]

    def one_by_one(texts: list[str]) -> list[TokenIds]:
        return [ids for text in texts for ids in cut([text])]

    tower = partial(_tower, engine=engine, name="ort", provider=provider, precision=asked)
    for batch in [*batches, 1]:
        yield tower("images", inputs.images(batch), batch=batch, size=str(batch))
    tokens = engine.batch_size * inputs.encoder.spec.context_length
    yield tower("texts", inputs.ids(cut), batch=engine.batch_size, size=f"{tokens} tokens")
    yield tower("texts", inputs.ids(one_by_one), batch=1, size="1")


def torch_cases(rivals: Rivals, inputs: Inputs) -> Iterator[Case]:
    """PyTorch on images in batches of TORCH_IMAGES, on texts padded to the full length, TORCH_TEXTS a batch, on single
    ones, and on whole runs as the released scripts make them."""
    encoder, length = inputs.encoder, inputs.encoder.spec.context_length

    def released(dataset: Dataset, table: StoredTable) -> Callable[[], object]:
        return rivals.released(dataset.root, dataset.images, table.scan().collect())

    yield Case("run", "released", rivals.device, "fp32", "fp32", inputs.runs(released))
    for precision, engine in rivals.engines.items():
        tower = partial(_tower, engine=engine, name="torch", provider=rivals.device, precision=precision)
        for batch in (*TORCH_IMAGES, 1):
            yield tower("images", inputs.images(batch), batch=batch, size=str(batch))
        for batch in (TORCH_TEXTS, 1):

            def padded(texts: list[str], batch: int = batch) -> list[TokenIds]:
                starts = range(0, len(texts), batch)
                return [encoder.pad(encoder.ids(texts[i : i + batch]), length) for i in starts]

            yield tower("texts", inputs.ids(padded), batch=batch, size=f"{batch}x{length}")


def roof_cases(products: Iterable[Product]) -> Iterator[Case]:
    """Products of matrices, as often as there is time for."""
    for product in products:

        def make(count: int, product: Product = product) -> Work:
            return Work([product.call] * count, count * product.flops)

        size = "x".join(map(str, product.shape))
        yield Case("roof", product.engine, product.provider, product.precision, product.precision, make, size=size)


class Operations:
    """Counts the floating point operations of the towers of `bundle`. PyTorch's towers are the bundle's."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._rows: dict[tuple[Path, tuple[int, ...]], int | None] = {}

    def __call__(self, case: Case, count: int) -> int | None:
        """Of a case on `count` images or texts; None where it is none, and where they can't be counted."""
        if case.arrays is None:
            return None
        tower: Tower = "vision" if case.what == "images" else "text"
        precision = choose_precision(case.precision) if case.engine == "ort" else None
        graph = self._bundle.path(self._bundle.graph(tower, precision).file)
        arrays = case.arrays(count)
        # Every row of one shape costs the same: one of each is run.
        unknown = {a.shape[1:]: a[:1] for a in arrays if (graph, a.shape[1:]) not in self._rows}
        if unknown:
            found = flops(graph, unknown.values())
            self._rows |= {(graph, shape): each for shape, each in zip(unknown, found, strict=True)}
        total = 0
        for array in arrays:
            each = self._rows[graph, array.shape[1:]]
            if each is None:
                return None
            total += each * len(array)
        return total


def _tower(
    what: str, arrays: Arrays, engine: Engine, name: str, provider: str, precision: str, batch: int, size: str
) -> Case:
    embed = engine.embed_pixels if what == "images" else engine.embed_ids

    def make(count: int) -> Work:
        found = arrays(count)
        return Work([partial(embed, array) for array in found], sum(map(len, found)))

    return Case(what, name, provider, precision, engine.stamp.precision["executed"], make, arrays, batch, size)


def _score(engine: OrtEngine, dataset: Dataset, table: StoredTable) -> Callable[[], object]:
    """What scores a table from the image files on, keeping every vector as a small run does."""
    shards = list(table.shards(SHARD_IMAGES))
    return lambda: list(Local(engine).score(dataset.root, shards, table.pairs, 1.0, lambda *_: None))
