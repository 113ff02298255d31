"""How fast a bundle is: side by side, in one run, with the PyTorch original and with the roof of the machine."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lgip_ort import __version__
from lgip_ort.bundle import Bundle, Precision, choose_precision
from lgip_ort.doctor import cpu
from lgip_ort.engine import OrtEngine, provider_for
from lgip_ort.errors import UsageFault
from lgip_ort.provider import BATCH, PROVIDERS, choose
from lgip_ort.speed.busy import Watch
from lgip_ort.speed.cases import TORCH_IMAGES, Case, Inputs, Operations, Rivals, ort_cases, roof_cases, torch_cases
from lgip_ort.speed.fresh import load_afresh
from lgip_ort.speed.roof import numpy_products, ort_products
from lgip_ort.speed.rounds import Group, Timing, take_turns

SECONDS = {"images": 1.5, "texts": 1.5, "run": 4.0, "roof": 0.3}
"""That a case of middling speed takes in a round, by what it works on."""

SINGLES = 5
"""Single images or texts a round, at least."""

UNITS = {"images": "images/s", "texts": "texts/s", "run": "pairs/s"}

Engines = dict[tuple[str, Precision], OrtEngine]
"""By provider and precision."""

Timings = Mapping[str, Timing]
"""By the names of the cases."""


@dataclass(frozen=True)
class Asked:
    """What is to be measured. None: every provider that works here, every precision of the bundle, batches of BATCH.

    `torch`: whether PyTorch must be there; None leaves it out where it, or the original's weights, can't be had.
    """

    data: str = "demo"
    available_only: bool = False
    providers: Sequence[str] | None = None
    precisions: Sequence[str] | None = None
    batches: Sequence[int] | None = None
    rounds: int = 5
    torch: bool | None = None


def measure(
    bundle: Bundle, asked: Asked, rivals: Callable[[Bundle, str], Rivals], say: Callable[[str], None]
) -> dict[str, Any]:
    """Time everything; the result is the object that `--json` prints, without the command.

    `rivals` makes PyTorch's side on a device (cpu, cuda), and raises UsageFault where it can't; `say` is told what is
    going on. Raises UsageFault where something that was asked for is unknown or does not work here, RunFault where a
    score is not finite.
    """
    engines, loads, left_out = _open(bundle, asked, say)
    others: list[Rivals] = []
    for device in dict.fromkeys(PROVIDERS[provider].device for provider, _ in engines):
        try:
            others += [rivals(bundle, device)] if asked.torch is not False else []
        except UsageFault as fault:
            if asked.torch:
                raise
            left_out.append(f"torch/{device}: {fault}")
    largest = max(*TORCH_IMAGES, *BATCH.values(), *(asked.batches or ()))
    with tempfile.TemporaryDirectory(prefix="lgip-ort-") as folder:
        inputs = Inputs(bundle, asked.data, asked.available_only, largest, Path(folder))
        cases: list[Case] = []
        for (provider, _), engine in engines.items():
            cases += ort_cases(provider, engine, inputs, asked.batches or [engine.batch_size])
        for rival in others:
            cases += torch_cases(rival, inputs)
        roofs = _roofs(cases, engines, others)
        watch = Watch()
        timings, warm_up = take_turns(_groups([*cases, *roofs], len(inputs.dataset.images)), asked.rounds, say)
    used = watch.cores()
    say("counting operations")
    best = _best(roofs, timings)
    count = Operations(bundle)
    rows = [_row(case, timings, count, best) for case in cases]
    for case, row in zip(cases, rows, strict=True):
        row["load"] = loads[case.provider, choose_precision(case.precision)] if case.engine == "ort" else None
        row["threads"] = next((r.threads for r in others if case.engine != "ort" and r.device == case.provider), None)
    weights = bundle.manifest.weights
    name = f"{weights.name}@{weights.revision}" if weights.revision else weights.name
    return {
        "status": "done",
        "model": bundle.manifest.model,
        "weights": "random" if weights.source == "random" else name,
        "weights_sha256": weights.sha256,
        "machine": {
            "cores": os.cpu_count(),
            "cpu": cpu()[0],
            "system": f"{platform.system()} {platform.machine()}",
            "used_by_others": used,
        },
        "versions": _versions(engines, others),
        "data": {"name": inputs.dataset.name, "images": inputs.distinct, "captions": len(inputs.texts)},
        "deduplicated": False,
        "rounds": asked.rounds,
        "warm_up": {"seconds": warm_up},
        "cases": rows,
        "roof": [
            {
                "name": case.name,
                "engine": case.engine,
                "provider": case.provider,
                "device": case.device,
                "precision": case.precision,
                "flops_per_second": timings[case.name].rate,
                "best": case in best.values(),
            }
            for case in roofs
        ],
        "ratios": _ratios(cases, timings, rows),
        "left_out": left_out,
    }


def _open(
    bundle: Bundle, asked: Asked, say: Callable[[str], None]
) -> tuple[Engines, dict[tuple[str, Precision], dict[str, Any]], list[str]]:
    """The engines, what it took to load each in a fresh process, and what does not work here, with the reason.

    Processes come first: nothing else is at work, and nothing else is in memory. Raises UsageFault where a provider
    that was asked for by name, or the CPU, runs none of the precisions.
    """
    precisions = [choose_precision(name) for name in asked.precisions or bundle.precisions]
    named = [choose(name).key for name in asked.providers or ()]
    keys = dict.fromkeys(named or [key for key, provider in PROVIDERS.items() if provider.problem() is None])
    for precision in precisions:
        bundle.graph("vision", precision)  # that the bundle lacks one is a fault, not a thing to leave out
    loads: dict[tuple[str, Precision], dict[str, Any]] = {}
    left_out = []
    for key in keys:
        faults = []
        for precision in precisions:
            batch = max([BATCH[PROVIDERS[key].device], *(asked.batches or ())])
            say(f"loading ort/{key} {precision} in a process of its own")
            try:
                provider_for(key, bundle.graph("vision", precision).precision)
                loads[key, precision] = load_afresh(bundle.folder, key, precision, batch)
            except UsageFault as fault:
                faults.append(fault)
                left_out.append(f"ort/{key} {precision}: {fault}")
        if len(faults) == len(precisions) and (named or key == "cpu"):
            raise faults[0]
    engines = {
        (key, precision): OrtEngine(bundle, key, BATCH[PROVIDERS[key].device], precision=precision)
        for key, precision in loads
    }
    return engines, loads, left_out


def _roofs(cases: Sequence[Case], engines: Engines, others: Sequence[Rivals]) -> list[Case]:
    """Products of matrices by everything that can compute what the cases are computed in."""
    wanted = {(case.device, case.arithmetic) for case in cases}
    products = numpy_products() if ("cpu", "fp32") in wanted else []
    for key in dict.fromkeys(key for key, _ in engines):
        products += ort_products(PROVIDERS[key])
    for rival in others:
        products += rival.products
    return [case for case in roof_cases(products) if (case.device, case.arithmetic) in wanted]


def _groups(cases: Iterable[Case], images: int) -> list[Group]:
    """The cases by the work they share. Its step is the largest batch, so that every batch is full in all of them."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.group, []).append(case)
    groups = []
    for same in found.values():
        step = SINGLES if same[0].single else max(case.batch or 1 for case in same)
        most = {"most": images} if same[0].what == "run" else {}
        groups.append(Group({case.name: case.make for case in same}, SECONDS[same[0].what], step, **most))
    return groups


def _best(roofs: Iterable[Case], timings: Timings) -> dict[tuple[str, str], Case]:
    """The fastest product of matrices by device and precision."""
    best: dict[tuple[str, str], Case] = {}
    for case in sorted(roofs, key=lambda case: timings[case.name].rate):
        best[case.device, case.arithmetic] = case
    return best


def _row(case: Case, timings: Timings, count: Operations, best: Mapping[tuple[str, str], Case]) -> dict[str, Any]:
    """A case as JSON has it."""
    timing, roof = timings[case.name], best.get((case.device, case.arithmetic))
    counted, share, latency = count(case, int(timing.amount)), None, None
    if counted is not None and roof is not None:
        share = {"name": roof.name, **_ratio(Timing(counted, timing.seconds), timings[roof.name])}
    if case.single:
        latency = {"p50": timing.percentile(50), "p95": timing.percentile(95), "calls": timing.seconds.size}
    return {
        "name": case.name,
        "what": case.what,
        "engine": case.engine,
        "provider": case.provider,
        "precision": {"stored": case.precision if case.engine == "ort" else "fp32", "executed": case.executed},
        "batch": case.batch,
        "amount": timing.amount,
        "seconds": timing.median,
        "rounds": timing.seconds.sum(axis=1).tolist(),
        "rate": timing.rate,
        "unit": UNITS[case.what],
        "latency": latency,
        "flops": counted,
        "roof": share,
    }


def _ratio(a: Timing, b: Timing) -> dict[str, float]:
    """How many times as fast `a` is: the median of the rounds, and the lowest and the highest of them."""
    found = a.against(b)
    return {"ratio": float(np.median(found)), "low": float(found.min()), "high": float(found.max())}


def _ratios(cases: Sequence[Case], timings: Timings, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How many times as fast the artifact is as what it stands beside, wherever both were measured, and which share of
    the roof it reaches. Of several batches the fastest stands for all, on either side."""

    def fastest(what: str, engine: str, provider: str, precision: str) -> Case | None:
        side = (what, engine, provider, precision)
        found = [c for c in cases if not c.single and (c.what, c.engine, c.provider, c.precision) == side]
        return max(found, key=lambda case: timings[case.name].rate, default=None)

    wanted: list[tuple[str, Case | None, Case | None]] = []
    for run in cases:
        if (run.what, run.engine) != ("run", "ort"):  # there is one for each provider and precision
            continue
        own, device = ("ort", run.provider, run.precision), run.device
        wanted.append(("texts", fastest("texts", *own), fastest("texts", "torch", device, "fp32")))
        for precision in ("fp32", "bf16") if run.precision == "fp16" else ():
            wanted.append(("images", fastest("images", *own), fastest("images", "torch", device, precision)))
        wanted.append(("run", run, fastest("run", "released", device, "fp32")))
    for what in ("images", "texts"):
        wanted.append((what, fastest(what, "ort", "cpu", "fp16"), fastest(what, "ort", "cpu", "fp32")))
    ratios = [
        {"what": what, "case": a.name, "against": b.name, **_ratio(timings[a.name], timings[b.name])}
        for what, a, b in wanted
        if a is not None and b is not None
    ]
    visions = [fastest("images", "ort", "cpu", precision) for precision in ("fp32", "fp16")]
    names = [case.name for case in visions if case is not None]
    for row in rows:
        if row["name"] in names and (roof := row["roof"]) is not None:
            share = {name: roof[name] for name in ("ratio", "low", "high")}
            ratios.append({"what": "share of roof", "case": row["name"], "against": roof["name"], **share})
    return ratios


def _versions(engines: Engines, others: Sequence[Rivals]) -> dict[str, str]:
    """Of everything that was timed, and of what timed it."""
    found = {"lgip-ort": __version__, "python": platform.python_version()}
    for engine in [*engines.values(), *(rival.engines["fp32"] for rival in others)]:
        found |= engine.stamp.versions
    return found
