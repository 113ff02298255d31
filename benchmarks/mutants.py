"""Is the gate any good? `python benchmarks/mutants.py`: damaged deployments, and honest ones, put before it.

Each is a copy of a demo model's bundle with a change, or the engine called otherwise. All are scored over the same 400
pictures as the PyTorch original, and `parity.compare` gives its verdict, as in `bench.py --engine both`. A damaged one
should not pass: be refused when it is opened, fail to score, have drifted or be inconclusive; an honest one should be
equal. How many images are enough is found by giving the gate the first 30, 50, 100, 200 and 400 of them.

Exit code 1 where damage that moves a score is called equal, or an honest variant is not.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

sys.path[0] = str(Path(__file__).resolve().parents[1])

import onnxruntime
import polars as pl
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.damage import graphs, honest, pixels, tokens
from benchmarks.damage.kinds import Absent, Variant, rehash
from benchmarks.damage.pictures import write_pictures
from exporter.reference import TorchEngine
from lgip_ort.atomic import replacing, write_json
from lgip_ort.bundle import open_bundle
from lgip_ort.engine import Engine, OrtEngine
from lgip_ort.errors import RunFault, UsageFault
from lgip_ort.execute import Plan, execute
from lgip_ort.judge import in_margins
from lgip_ort.padding import with_lengths
from lgip_ort.pairs import Wanted, open_pairs
from lgip_ort.parity import Comparison, compare
from lgip_ort.report import names
from lgip_ort.retrieval import Gallery, gallery
from lgip_ort.run import Run
from lgip_ort.score import Local
from lgip_ort.stored import store
from models import zoo

DAMAGED = (*tokens.VARIANTS, *pixels.VARIANTS, *graphs.VARIANTS)
EVERY = (*DAMAGED, *honest.VARIANTS, *honest.INFORMATION)
LADDER = (30, 50, 100, 200, 400)
DOC = Path("docs/parity.md")
BEGIN, END = "<!-- made by benchmarks/mutants.py -->", "<!-- end -->"
HEAD = ("variant", "what people do", "outcome", "by", "images", "difference / margin", "largest ds")


@dataclass(frozen=True)
class Outcome:
    """What became of a variant.

    outcome: `refused`, `failed`, a verdict, `no effect` or `cannot matter`; by: the refusal, or the row that is
    farthest out; images: the least of LADDER from which on the gate says drifted; max_ds: the largest difference of a
    score, None where none was made; ratio: of the farthest row, difference over margin.
    """

    name: str
    group: str
    what: str
    outcome: str
    by: str
    images: int | None
    max_ds: float | None
    ratio: float | None
    seconds: float

    @property
    def right(self) -> bool:
        """Whether that is what should become of it."""
        if self.group == "information":
            return True
        if self.group == "honest":
            return self.outcome in ("equal", "not here")
        return self.outcome != "equal"


@dataclass(frozen=True)
class First(Run):
    """A run of which only the first `n` images are looked at."""

    n: int = 0

    def parts(self) -> Iterator[pl.DataFrame]:
        """Their pairs."""
        known = self._ids()
        for part in super().parts():
            yield part.filter(pl.col("image_id").is_in(known))

    def gallery(self) -> Gallery | None:
        """Themselves, with their captions."""
        columns = ("image_id", "text", "text_length")
        captions = self.table().filter(pl.col("image_id").is_in(self._ids())).select(columns)
        return gallery([captions], self.embeddings())

    def _ids(self) -> list[str]:
        return pl.read_parquet(self.folder / "images.parquet")["image_id"].head(self.n).to_list()


class Bench:
    """One model: its original, scored once, and what its variants are compared with."""

    def __init__(self, key: str, data: str, folder: Path, limit: int | None = None) -> None:
        committed = zoo.get(key).committed_bundle
        assert committed is not None
        self.key, self.committed, self.folder = key, committed, folder
        bundle = open_bundle(committed)
        dataset, parts, suite = open_pairs(Wanted(data=data, limit=limit), False, None)
        parts = (with_lengths(part, dataset.captions, bundle, "trained") for part in parts)
        stored = store(parts, dataset.images, folder / "table.parquet")
        self.plan = Plan(dataset, stored, suite, 0, 16)
        self.reference = self._run(TorchEngine.from_bundle(bundle, 16, "cpu"))
        self.whole = self._run(OrtEngine(bundle, "cpu", 16))
        # A score that moves by less has not moved: storing the model in fp16 moves one as far.
        self.still = compare(self.reference, self.whole).max_ds

    def put(self, variant: Variant) -> Outcome:
        """Make the variant, score it, and ask the gate."""
        began = time.perf_counter()
        outcome = self._put(variant)
        return replace(outcome, seconds=round(time.perf_counter() - began, 1))

    def _put(self, variant: Variant) -> Outcome:
        def of(outcome: str, by: str, **found: Any) -> Outcome:
            empty = {"images": None, "max_ds": None, "ratio": None}
            return Outcome(variant.name, variant.group, variant.what, outcome, by, **(empty | found), seconds=0.0)

        folder = self.folder / "variant" / self.key
        shutil.rmtree(folder.parent, ignore_errors=True)
        shutil.copytree(self.committed, folder)
        try:
            if variant.change is not None:
                variant.change(folder)
                rehash(folder)
            with self._engine(variant, folder) as engine:
                run = self._run(engine)
        except Absent as reason:
            return of("cannot matter", str(reason))
        except UsageFault as fault:
            if "is not available" in str(fault):  # a provider that this machine has not
                return of("not here", str(fault))
            return of("refused", str(fault).removeprefix(f"{folder}/"))
        except RunFault as fault:
            return of("failed", str(fault))
        comparison = compare(self.reference, run)
        moved = compare(self.whole, run).max_ds
        worst = max(comparison.rows, key=lambda row: abs(in_margins(row.delta, row.margin)))
        by = f"{worst.metric}, {names.pairs_of(worst.kind, worst.family, worst.stratum)}"
        ratio = abs(in_margins(worst.delta, worst.margin))
        if variant.group not in ("honest", "information") and moved <= self.still:
            return of("no effect", f"no score moved by more than fp16 moves one, {self.still:.1e}", max_ds=moved)
        images = self._ladder(run, comparison)
        return of(str(comparison.verdict), by, max_ds=comparison.max_ds, ratio=ratio, images=images)

    @contextlib.contextmanager
    def _engine(self, variant: Variant, folder: Path) -> Iterator[Engine]:
        """The engine of a variant; options of a session that an engine has no name for are set while it is made."""
        given: dict[str, Any] = {"provider": "cpu", "batch_size": 16} | dict(variant.options)
        level = given.pop("level", None)
        with contextlib.ExitStack() as stack:
            if level is not None:
                plain = onnxruntime.SessionOptions

                def options() -> Any:
                    made = plain()
                    made.graph_optimization_level = onnxruntime.GraphOptimizationLevel(level)
                    return made

                stack.enter_context(mock.patch.object(onnxruntime, "SessionOptions", options))
            engine: Engine = OrtEngine(open_bundle(folder), **given)
            yield variant.wrap(engine) if variant.wrap is not None else engine  # type: ignore[arg-type]

    def _ladder(self, run: Run, comparison: Comparison) -> int | None:
        """From how many images on the gate says drifted, None where it does not at all of them."""
        if comparison.verdict != "drifted":
            return None
        enough = len(self.plan.dataset.images)
        for n in sorted((n for n in LADDER if n < enough), reverse=True):
            reference, candidate = (First(of.folder, of.stamp, n=n) for of in (self.reference, run))
            if compare(reference, candidate).verdict != "drifted":
                break
            enough = n
        return enough

    def _run(self, engine: Engine) -> Run:
        out = Path(tempfile.mkdtemp(dir=self.folder))
        return execute(Local(engine), replace(self.plan, batch_size=engine.batch_size), out, lambda *_: None)


def table(key: str, outcomes: Sequence[Outcome]) -> Table:
    """The outcomes for a terminal."""
    made = Table(title=key, box=None, pad_edge=False, title_justify="left")
    for name in ("variant", "outcome", "by", "images", "difference / margin", "largest ds"):
        made.add_column(name)
    for o in outcomes:
        style = "" if o.right else "bold red"
        made.add_row(o.name, o.outcome, o.by[:70], *_numbers(o), style=style)
    return made


def _numbers(o: Outcome) -> tuple[str, str, str]:
    images = "" if o.images is None else str(o.images)
    return images, "" if o.ratio is None else f"{o.ratio:.2f}", "" if o.max_ds is None else f"{o.max_ds:.1e}"


def document(found: dict[str, list[Outcome]]) -> str:
    """The outcomes as the tables of docs/parity.md."""
    lines = []
    for key, outcomes in found.items():
        lines += [f"**{key}**", "", f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
        for o in outcomes:
            by = " ".join(o.by.split()).replace("|", "\\|")
            lines.append(f"| {o.name} | {o.what} | {o.outcome} | {by} | {' | '.join(_numbers(o))} |")
        lines.append("")
    return "\n".join(lines)


def main(
    model: Annotated[list[str] | None, typer.Option(help="Demo models. Default: both.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Names of variants. Default: all.")] = None,
    limit: Annotated[int | None, typer.Option(min=30, help="Only the first N pictures.")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write docs/parity.md and docs/measurements/mutants.json.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Damage deployments and ask the gate."""
    if write and (only or model or limit):
        raise typer.BadParameter("--write is for all variants of both models: the tables are written as a whole")
    known = {variant.name for variant in EVERY}
    if unknown := set(only or ()) - known:
        raise typer.BadParameter(f"{', '.join(unknown)}: known are {', '.join(sorted(known))}")
    log = Console(stderr=True, highlight=False)
    found: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory(prefix="lgip-ort-") as temporary:
        root = Path(temporary)
        (root / "pictures").mkdir()
        data = write_pictures(root / "pictures")
        for key in model or ("tiny_clip", "tiny_siglip"):
            (root / key).mkdir()
            bench = Bench(key, data, root / key, limit)
            found[key] = []
            for variant in EVERY:
                if only and variant.name not in only:
                    continue
                outcome = bench.put(variant)
                found[key].append(outcome)
                log.print(f"{key}: {outcome.name}: {outcome.outcome}, {outcome.seconds} s", markup=False)
    content = {
        "command": shlex.join(["python", "benchmarks/mutants.py", *sys.argv[1:]]),
        "models": {key: [asdict(o) | {"right": o.right} for o in outcomes] for key, outcomes in found.items()},
    }
    if write:
        write_json(Path("docs/measurements/mutants.json"), content)
        text = DOC.read_text(encoding="utf-8")
        head, rest = text.split(BEGIN, 1)
        with replacing(DOC) as path:
            path.write_text(f"{head}{BEGIN}\n\n{document(found)}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")
    if as_json:
        print(json.dumps(content, indent=2))
    else:
        for key, outcomes in found.items():
            Console(width=160).print(table(key, outcomes))
    raise typer.Exit(0 if all(o.right for outcomes in found.values() for o in outcomes) else 1)


if __name__ == "__main__":
    typer.run(main)
