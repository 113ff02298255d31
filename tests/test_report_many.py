"""Many runs on one page: who is compared with whom, what is refused, what the page and the other formats say."""

from __future__ import annotations

import dataclasses
import io
import json
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from browser import browse, probe
from made import make_run, make_table
from PIL import Image

from lgip_ort.blame import Step
from lgip_ort.errors import UsageFault
from lgip_ort.margins import Margin, Margins, read_margins
from lgip_ort.parity import compare
from lgip_ort.report import charts, names, sentence
from lgip_ort.report.examples import disagreements
from lgip_ort.report.formats import as_json, csv, junit, markdown
from lgip_ort.report.html import Report, report_on, write_page, write_report
from lgip_ort.report.many import board
from lgip_ort.run import open_run

IMAGES = 320
KINDS = (("paraphrase", "wrapper"), ("flip", "colour"), ("flip", "count"), ("identity", "identity"))
ROWS = [(f"{i:03d}", kind, family) for i in range(IMAGES) for kind, family in KINDS]
TEXT = [f"a red dog number {i} | <b>" for i in range(IMAGES) for _ in KINDS]
PERTURBED = [
    t if k == "identity" else f"a photo of {t}" if k == "paraphrase" else t.replace("red", "blue")
    for t, (_, k, _) in zip(TEXT, ROWS, strict=True)
]
TABLE = make_table(ROWS, text=TEXT, perturbed=PERTURBED, target_word=["a photo of {}", "blue", "two", None] * IMAGES)
S = [0.5] * len(ROWS)


def scores(paraphrase=0.02, flip=0.1, wrong=8):
    """Every `wrong`-th flip of a colour is wrong."""
    gap = {"paraphrase": paraphrase, "flip": flip, "identity": 0.0}
    return [
        0.5 + flip if (kind, family) == ("flip", "colour") and int(i) % wrong == 0 else 0.5 - gap[kind]
        for i, kind, family in ROWS
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Makes a finished run with pictures, a profile and the rest of what a page reads."""
    root = tmp_path_factory.mktemp("pictures")
    for i in range(IMAGES):
        Image.new("RGB", (8, 8), (i % 256, 0, 0)).save(root / f"{i:03d}.png")

    def make(model="m", engine="ort", precision="fp16", perturbed=None, table=TABLE, s=S, **stamp):
        given = {
            "model": model,
            "engine": engine,
            "precision": {"asked": precision, "executed": precision},
            "dataset": {
                "name": "made", "hash": "3" * 64, "root": str(root), "images": IMAGES, "captions": IMAGES, "missing": 0,
                "named": IMAGES,
            },
            "n": {"images": IMAGES, "effective": len(table), "original": len(table), "skipped": 0},
            "seconds": {"load": 1.0, "images": 2.0, "texts": 1.0, "score": 1.0, "total": 5.0},
            "lgip_ort": "0", "python": "3", "machine": "here", "finished": "now", "lengths": None, "size": 2_500_000,
            "pairs": {"paraphrase": 320, "flip": 640, "combined": 0, "identity": 320},
        } | stamp  # fmt: skip
        folder = tmp_path_factory.mktemp("run") / f"{model}-{engine}-{precision}"
        run = make_run(folder, table, s, scores() if perturbed is None else perturbed, **given)
        ids = table["image_id"].unique(maintain_order=True)
        pl.DataFrame({"image_id": ids, "path": ids + ".png"}).write_parquet(folder / "images.parquet")
        skipped = pl.Schema({"image_id": pl.String, "path": pl.String, "reason": pl.String})
        pl.DataFrame(schema=skipped).write_parquet(folder / "skipped.parquet")
        from lgip_ort import metrics

        parts = [metrics.lean(part) for part in run.parts()]
        metrics.profile(pl.concat(parts), 0).write_parquet(folder / "profile.parquet")
        return run

    return make


@pytest.fixture(scope="module")
def runs(made):
    """One model on PyTorch, in fp16 and in int8, which is worse; another model, and the first in another arm."""
    paper = {"padding": "paper", "lengths": {"min": 3, "max": 9, "sha256": "4" * 64}}
    return [
        made(engine="torch", precision="fp32"),
        made(),
        made(precision="int8", perturbed=scores(flip=0.05, wrong=3)),
        made(model="other", perturbed=scores(paraphrase=0.1)),
        made(perturbed=scores(paraphrase=0.05), **paper),
        made(engine="torch", precision="fp32", perturbed=scores(paraphrase=0.05), **paper),
    ]


@pytest.fixture(scope="module")
def report(runs):
    return report_on(runs)


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    return write_page(report, tmp_path_factory.mktemp("page") / "report.html")


def test_runs_are_compared_within_model_weights_and_arm(report, runs):
    """Against the original; a model alone is compared with nothing."""
    found = [(c.reference.folder, c.candidate.folder, c.verdict) for c in report.comparisons]
    assert found == [
        (runs[0].folder, runs[1].folder, "equal"),
        (runs[0].folder, runs[2].folder, "drifted"),
        (runs[5].folder, runs[4].folder, "equal"),
    ]


@pytest.mark.parametrize(("precisions", "reference"), [(("int8", "fp16", "fp32"), "fp32"), (("int8", "fp16"), "fp16")])
def test_without_an_original_the_finest_is_the_reference(made, precisions, reference):
    found = report_on([made(precision=p) for p in precisions])
    assert {c.reference.stamp["precision"]["asked"] for c in found.comparisons} == {reference}
    assert len(found.comparisons) == len(precisions) - 1


@pytest.mark.parametrize(
    ("stamp", "field"),
    [({"suite": "strict"}, "suite"), ({"seed": 7}, "seed"), ({"table": "9" * 64}, "table")],
)
def test_runs_over_other_pairs_are_refused(made, stamp, field):
    one, two = made(), made(model="x")
    two = dataclasses.replace(two, stamp=two.stamp | stamp)
    with pytest.raises(
        UsageFault, match=rf"can't stand on one page: {field} is .* in {one.folder} and .* in {two.folder}"
    ):
        report_on([one, two])


def test_runs_over_other_pictures_are_refused(made):
    other = made(model="x")
    dataset = other.stamp["dataset"] | {"hash": "8" * 64}
    with pytest.raises(UsageFault, match="dataset hash is '333"):
        report_on([made(), dataclasses.replace(other, stamp=other.stamp | {"dataset": dataset})])


def test_board(runs, report):
    found = board(runs, report.comparisons)
    assert [round(e.pr["value"], 4) for e in found] == sorted([round(e.pr["value"], 4) for e in found], reverse=True)
    (int8,) = [e for e in found if "int8" in e.label]
    assert found[-1] is int8
    assert int8.pr["value"] == pytest.approx(1 - np.ceil(IMAGES / 3) / 640)
    assert (int8.verdict, int8.images_per_second, int8.pairs_per_second, int8.size) == ("drifted", 160, 256, 2_500_000)
    assert {e.label: e.verdict for e in found} == {
        "m, torch cpu fp32": "reference",
        "m, ort cpu fp16": "equal",
        "m, ort cpu int8": "drifted",
        "other, ort cpu fp16": "",
        "m, ort cpu fp16, padding paper": "equal",
        "m, torch cpu fp32, padding paper": "reference",
    }


def test_labels_tell_runs_apart(made):
    a, b, c = made(), made(), made(weights={"source": "path", "name": "mine", "revision": None, "sha256": "5" * 64})
    assert names.labels([a]) == ["m"]
    assert names.labels([a, c]) == ["m, random", "m, mine"]
    same = names.labels([a, b])
    assert len(set(same)) == 1 or same[0] != same[1]  # folders of one name can't be told apart by it


def test_sentences(runs, report):
    equal, drifted, arm = report.sentences()
    count = len(report.comparisons[0].rows)
    assert equal == (
        f"The fp16 artifact of m on cpu behaves like the PyTorch original: all {count} differences lie within their margins."
    )
    assert drifted.startswith("The int8 artifact of m on cpu does not behave like the PyTorch original: ")
    assert "is off by -0." in drifted and "times its margin" in drifted
    assert "The image embeddings are the farther ones: least cosine 1.000000." in drifted
    assert arm.startswith("The fp16 artifact of m on cpu, padding paper, behaves like")
    step = Step("text", "tokens", 4, 1.0, 0.5, 0.1, "x", to_blame=True)
    blamed = dataclasses.replace(report.comparisons[1], blame=[step])
    assert sentence.of_comparison(blamed).endswith(" What differs first: tokens (text).")


def test_sentence_of_a_run(runs):
    assert sentence.of_run(runs[0]) == (
        "m scores the true caption above the falsified one in 93.8 % of 640 cases; chance is 50 %. "
        "Rewording a caption moves its score by 0.0200 on average, falsifying it lowers the score by 0.0875: "
        "4.4 times as much."
    )


def test_sentence_of_a_run_whose_flips_cost_nothing(made):
    run = made(perturbed=scores(flip=-0.1, wrong=1000))
    assert sentence.of_run(run).endswith("falsifying it changes the score by +0.0997: no more than rewording does.")


def test_margins_of_zero(runs):
    """Nothing may differ at all: said in words, drawn at the edge, and nowhere divided by."""
    none = Margins(30, {name: Margin(0.0, 0.0) for name in read_margins().by_metric})
    drifted = compare(runs[0], runs[2], margins=none)
    assert "where none is allowed" in sentence.of_comparison(drifted)
    equal = compare(runs[0], runs[1], margins=none)
    assert {r.verdict for r in equal.rows if r.metric in ("E_inv", "E_sens")} == {"equal"}
    assert all(charts.differences_chart(of).startswith("<svg") for of in (drifted, equal))


def test_sentence_of_too_few_images(made):
    few = 20 * len(KINDS)
    table = TABLE[:few]
    a, b = (made(engine=e, table=table, s=S[:few], perturbed=scores()[:few]) for e in ("torch", "ort"))
    line = sentence.of_comparison(compare(a, b))
    assert line.startswith(
        "Whether the fp16 artifact of m on cpu behaves like the PyTorch original is not settled: 0 of "
    )
    assert "images would settle it." in line


def test_disagreements_start_with_changed_sides(runs, report):
    rows, changed = disagreements(report.comparisons[1], 12)
    assert changed == len(report.comparisons[1].sign_changes) > 12
    assert len({r["image_id"] for r in rows}) == len(rows) == 12
    assert all(r["changed"] for r in rows)
    moved = [abs((b - c) - (e - f)) for (_, b, c), (_, e, f) in (r["scores"] for r in rows)]
    assert moved == sorted(moved, reverse=True)
    assert disagreements(report.comparisons[0]) == ([], 0)


def test_picture_that_is_gone(made, tmp_path):
    run = made()
    gone = dataclasses.replace(run, stamp=run.stamp | {"dataset": run.stamp["dataset"] | {"root": str(tmp_path)}})
    assert "image no longer there" in write_report(gone).read_text("utf-8")


# ---- the page


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_page_in_a_browser(page, tmp_path, width, dark):
    """No complaint, no request, no sideways scrolling; read by people who see little, or nothing."""
    flags = [f"--window-size={width},900"] + (["--blink-settings=preferredColorScheme=0"] if dark else [])
    found = probe(page, tmp_path, *flags)
    assert found["dark"] is dark
    assert (found["paper"] == "rgb(255, 255, 255)") is not dark
    assert found["weak"] == []
    assert found["console"] == found["requests"] == []
    assert found["width"][0] <= found["width"][1]
    assert found["unnamed"] == found["heads"] == 0
    levels = found["headings"]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(b <= a + 1 for a, b in pairwise(levels))


def test_edited_words_are_marked_where_they_are(page, tmp_path):
    found = probe(page, tmp_path)
    assert len(found["marks"]) == 8
    for before, after, removed, added in found["marks"]:
        assert (removed, added) == (["red"], ["blue"])
        assert before.replace("red", "blue") == after
        assert "| <b>" in before


def test_examples_are_filtered_without_a_script(page, tmp_path):
    assert "<script" not in page.read_text("utf-8")
    assert probe(page, tmp_path)["seen"] == {"all": ["1"], "colour": ["1"]}


def test_page_on_paper(page, tmp_path):
    pdf = tmp_path / "page.pdf"
    browse(page, tmp_path / "browser", "--no-pdf-header-footer", f"--print-to-pdf={pdf}")
    assert pdf.read_bytes().startswith(b"%PDF-")
    assert pdf.stat().st_size > 20_000


def test_page_of_50_000_wrong_flips(made, tmp_path):
    """What is left out is counted; the page is small, and there at once."""
    images, each = 500, 100
    rows = [
        (f"{i:03d}"[:3] if i < IMAGES else f"{i % IMAGES:03d}", "flip", "colour")
        for i in range(images)
        for _ in range(each)
    ]
    rows.sort()
    texts = [f"a red dog {n}" for n in range(len(rows))]
    table = make_table(rows, text=texts, perturbed=[t.replace("red", "blue") for t in texts])
    run = made(table=table, s=[0.5] * len(rows), perturbed=[0.6] * len(rows))
    path = write_report(run)
    assert path.stat().st_size < 5_000_000
    assert "among them 24 of 50,000 flips that are wrong" in path.read_text("utf-8")
    assert probe(path, tmp_path)["seconds"] < 2


def test_page_of_a_thousand_strata(made, tmp_path):
    families = [f"family {n:04d}" for n in range(1000)]
    rows = [(f"{i:03d}", "flip", family) for i in range(2) for family in families]
    table = make_table(rows, text=["a red dog"] * 2000, perturbed=["a blue dog"] * 2000)
    path = write_report(made(table=table, s=[0.5] * 2000, perturbed=[0.4] * 2000))
    source = path.read_text("utf-8")
    assert "family 0999" in source and "<details><summary>m: " in source
    found = probe(path, tmp_path, "--window-size=390,900")
    assert found["width"][0] <= found["width"][1]
    assert found["seconds"] < 2
    assert "more families are not drawn" in source


def test_page_of_no_pairs(made, tmp_path):
    empty = TABLE[:0]
    path = write_report(made(table=empty, s=[], perturbed=[]))
    source = path.read_text("utf-8")
    assert "Nothing was scored: the run of m has no pairs." in source
    assert "There are no pairs to show." in source
    assert probe(path, tmp_path)["console"] == []


def test_stratum_of_one_image_is_too_few(made):
    table = make_table([("000", "flip", "colour")] * 3, text=["a red dog"] * 3, perturbed=["a blue dog"] * 3)
    source = write_report(made(table=table, s=[0.5] * 3, perturbed=[0.4] * 3)).read_text("utf-8")
    assert "too few images" in source


def test_speed_is_shown(report, tmp_path):
    speed = tmp_path / "speed.json"
    ratio = {"what": "images", "case": "ort <cpu>", "against": "torch", "ratio": 1.234, "low": 1.0, "high": 1.5}
    speed.write_text(json.dumps({"model": "m", "command": "python bench.py speed", "ratios": [ratio]}))
    source = write_page(report, tmp_path / "page.html", speed).read_text("utf-8")
    assert "ort &lt;cpu&gt;" in source and ">1.23<" in source
    speed.write_text("{}")
    with pytest.raises(UsageFault, match=r"speed.json: not a speed.json of bench.py speed"):
        write_page(report, tmp_path / "page.html", speed)


# ---- other formats


def test_markdown(report):
    lines = markdown(report).splitlines()
    assert lines[0].startswith("**The fp16 artifact of m on cpu behaves like the PyTorch original")
    start = lines.index("| run | E_inv ↓ | E_sens ↑ | PR ↑ | R@1 ↑ | verdict |")
    rows = [line for line in lines[start + 2 :] if line]
    assert rows[0].startswith("| m, torch cpu fp32 | 0.0200 (0.0200 .. 0.0200) | 0.0875 (")
    assert any(line.startswith("| PR | flips of colour | 0.8750 | ") and line.endswith("| drifted |") for line in rows)
    assert all(line.replace("\\|", "").count("|") in (0, 7) for line in lines)


def test_csv(report):
    frame = pl.read_csv(io.StringIO(csv(report)))
    assert frame.columns == [
        "of", "run", "reference", "metric", "kind", "family", "stratum", "value", "ci_low", "ci_high", "n", "margin", "verdict",
    ]  # fmt: skip
    assert len(frame) == sum(len(run.profile()) for run in report.runs) + sum(len(c.rows) for c in report.comparisons)
    drifted = frame.filter(of="difference", metric="PR", family="colour", verdict="drifted")
    assert drifted["value"].item() == pytest.approx((40 - np.ceil(IMAGES / 3)) / IMAGES)


def test_json(report):
    found = json.loads(as_json(report))
    assert set(found) == {"runs", "comparisons", "claims"}
    assert [run["model"] for run in found["runs"]] == ["m", "m", "m", "other", "m", "m"]
    assert [c["verdict"] for c in found["comparisons"]] == ["equal", "drifted", "equal"]
    assert {claim["outcome"] for claim in found["claims"]} == {"cannot be said"}


def test_junit(report):
    root = ElementTree.fromstring(junit(report))
    suites = {suite.get("name"): suite for suite in root.iter("testsuite")}
    assert len(suites) == 4
    assert suites["runs"].get("tests") == "6"
    drifted = suites["the int8 artifact of m on cpu against the PyTorch original"]
    rows = report.comparisons[1].rows
    assert int(drifted.get("tests")) == len(rows) == len(drifted.findall("testcase"))
    failures = drifted.findall("testcase/failure")
    assert int(drifted.get("failures")) == len(failures) == sum(row.verdict != "equal" for row in rows) > 3
    assert {f.get("type") for f in failures} <= {"drifted", "inconclusive"}
    assert suites["the fp16 artifact of m on cpu against the PyTorch original"].get("failures") == "0"


def test_junit_of_what_xml_can_not_hold(made):
    run = made()
    run = dataclasses.replace(run, stamp=run.stamp | {"model": "a\x00b\x1f<&\U0001f600\ud800"})
    root = ElementTree.fromstring(junit(Report([run], [])))
    (case,) = root.iter("testcase")
    assert case.get("name") == "ab<&\U0001f600"


# ---- the command


def test_command(bench, runs, tmp_path):
    folders = [run.folder for run in runs]
    out = tmp_path / "deep" / "page.html"
    outcome = bench("report", *folders[:2], "--out", out)
    assert (outcome.code, outcome.out) == (0, "")
    assert "behaves like the PyTorch original" in out.read_text("utf-8")
    assert bench("report", *folders[:2], "--out", out).code == 2
    outcome = bench("report", *folders[:3], "--out", out, "--overwrite")
    assert outcome.code == 1
    assert "does not behave" in out.read_text("utf-8")


@pytest.mark.parametrize("form", ["md", "csv", "json", "junit"])
def test_command_prints_other_formats(bench, runs, tmp_path, form):
    outcome = bench("report", *(run.folder for run in runs[:2]), "--format", form)
    assert outcome.code == 0
    assert outcome.out == {"md": markdown, "csv": csv, "json": as_json, "junit": junit}[form](
        report_on([open_run(run.folder) for run in runs[:2]])
    )
    file = tmp_path / "file"
    assert bench("report", *(run.folder for run in runs[:2]), "--format", form, "--out", file).out == ""
    assert file.read_text("utf-8") == outcome.out


def test_command_refuses(bench, runs, tmp_path):
    outcome = bench("report", runs[0].folder, tmp_path, "--format", "md")
    assert (outcome.code, outcome.out) == (2, "")
    assert f"{tmp_path}: not a run" in outcome.err
    assert bench("report").code == 2
    assert bench("report", runs[0].folder, "--format", "pdf").code == 2
    outcome = bench("report", runs[0].folder, "--format", "md", "--speed", tmp_path / "speed.json")
    assert (outcome.code, outcome.out) == (2, "")


def test_a_run_that_is_named_twice_is_one(bench, runs):
    folder = runs[0].folder
    outcome = bench("report", folder, folder.parent / "." / folder.name, f"{folder}/", "--format", "json")
    assert len(json.loads(outcome.out)["runs"]) == 1
