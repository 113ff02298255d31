from __future__ import annotations

import dataclasses
import io
import json
import re
from html.parser import HTMLParser

import polars as pl
import pytest
from browser import browse
from made import MadeEngine, make_coco, make_plan, write_captions
from PIL import Image
from rich.console import Console

from lgip_ort.bundle import open_bundle
from lgip_ort.dataset import open_dataset
from lgip_ort.engine import OrtEngine
from lgip_ort.execute import execute
from lgip_ort.metrics import PROFILE
from lgip_ort.parity import compare
from lgip_ort.report import console, contract
from lgip_ort.report.examples import examples, marked
from lgip_ort.report.html import write_report
from lgip_ort.score import Local
from lgip_ort.table import build_table

ODD = [
    "one red dog <script>document.title = 'taken'</script> & <img src=x onerror=alert(1)>",
    'two "red" dogs, it\'s one & only &lt;b&gt; [bold]cat[/bold]',
    "כלב red אחד dog بقرة one",
    "one red dog 👩‍👩‍👧 👍🏽 \u202e reversed",
    "one red dog " + "verylongword" * 30,
    "{{ one }} {% red %} dog",
]


def run_of(folder, engine, out, seed=0, max_skipped=0):
    data = open_dataset(f"coco:{folder}")
    plan = make_plan(out / "tables", data, build_table(data.captions, "paper", seed), seed, 64, max_skipped)
    return execute(Local(engine), plan, out, lambda stage, n: None)


@pytest.fixture(scope="module")
def run(toy, tmp_path_factory):
    """Thirteen images of which one can't be read, six with odd captions, and the page about them."""
    folder = make_coco(tmp_path_factory.mktemp("data"), images=13)
    (folder / "val/000000000013.png").write_bytes(b"no image")
    data = json.loads((folder / "annotations/captions_val.json").read_text())
    for annotation in data["annotations"][: 2 * len(ODD)]:
        annotation["caption"] = ODD[annotation["image_id"] - 1]
    write_captions(folder, data["images"], data["annotations"])
    run = run_of(folder, OrtEngine(open_bundle(toy)), tmp_path_factory.mktemp("runs"), max_skipped=1)
    assert write_report(run) == run.folder / "report.html"
    return run


class Page(HTMLParser):
    """What a browser makes of a page: elements with their attributes, and text with entities resolved."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.texts = [], []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)

    def count(self, tag, **attributes):
        return sum(t == tag and attributes.items() <= a.items() for t, a in self.elements)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(params=["file", "browser"], scope="module")
def page(request, run, tmp_path_factory):
    """The page as it was written, and as a browser holds it."""
    path = run.folder / "report.html"
    return Page(
        path.read_text("utf-8")
        if request.param == "file"
        else browse(path, tmp_path_factory.mktemp("browser"), "--dump-dom")
    )


def test_page_shows_profile_charts_and_examples(page, run):
    assert page.count("table", id="profile") == 1
    assert page.count("div", id="flips-chart") == page.count("div", id="strength-chart") == 1
    assert page.count("svg") == 5
    assert page.count("article", **{"class": "example"}) == 12  # one an image
    assert sum(a.get("src", "").startswith("data:image/") for tag, a in page.elements if tag == "img") == 12
    for row in run.profile().iter_rows(named=True):
        assert f"{row['value']:.4f}" in page.text
    assert "Weights: random" in page.text
    assert "val/000000000013.png UnidentifiedImageError" in page.text


def test_page_needs_no_network_and_runs_nothing(page):
    assert page.count("script") == page.count("iframe") == page.count("object") == 0
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "srcset", "href", "xlink:href", "data", "poster", "action"):
                assert value.startswith(("data:", "#")), (tag, name, value)
            if name == "style":
                assert "url(" not in value
    style = " ".join(page.texts)
    assert not re.search(r"@import|url\(\s*['\"]?https?:", style)


def test_page_says_that_texts_were_not_padded_as_trained(run):
    assert "not padded as the model was trained" not in Page((run.folder / "report.html").read_text("utf-8")).text
    arm = {"padding": "paper", "lengths": {"min": 3, "max": 20, "sha256": "0"}}
    path = write_report(dataclasses.replace(run, stamp=run.stamp | arm))
    found = Page(path.read_text("utf-8")).text
    write_report(run)  # the other tests read it
    assert "Padding: paper, to 3 .. 20 tokens. Texts were not padded as the model was trained." in found


def test_odd_captions_are_text(page):
    for caption in ODD:
        assert " ".join(caption.split()) in page.text
    assert "LGIP profile of toy" in page.text


def test_screenshot(run, tmp_path):
    picture = tmp_path / "page.png"
    browse(run.folder / "report.html", tmp_path / "profile", f"--screenshot={picture}", "--force-device-scale-factor=1")
    image = Image.open(picture).convert("RGB")
    assert image.size == (1100, 2400)
    for box in ((0, 0, 1100, 300), (0, 300, 1100, 800), (0, 800, 1100, 1600), (0, 1600, 1100, 2400)):
        assert len(image.crop(box).getcolors(1100 * 2400)) > 20, box


def test_examples_are_the_worst_first(tmp_path):
    """One pair an image: flips by gap, ties by pair; an image without flips comes last, by its error."""
    folder = tmp_path / "data"
    names = {1: "a blue dog", 2: "a red dog", 3: "a red cat", 4: "no match here"}
    images = [{"id": i, "file_name": f"{i}.png"} for i in names]
    write_captions(folder, images, [{"image_id": i, "caption": text} for i, text in names.items()])
    (folder / "val").mkdir()
    for i in names:
        Image.new("RGB", (300 if i == 1 else 4, 4), (255, 0, 0)).save(folder / "val" / f"{i}.png")
    table = build_table(open_dataset(f"coco:{folder}").captions, "paper", 0)
    value = {"a red dog": 0.25, "a blue dog": 0.5, "a red cat": 0.25, "no match here": 0.5}
    vectors = {text: (v, 0, 0) for text, v in value.items()}
    for row in table.filter(pl.col("kind") == "flip").iter_rows(named=True):
        vectors[row["perturbed"]] = (0.375 if row["family"] == "object" else 0.125, 0, 0)
    found, wrong = examples(run_of(folder, MadeEngine(vectors), tmp_path / "runs"))
    assert wrong == 2
    assert [row["image_id"] for row in found][-2:] == ["1", "4"]
    assert [round(row["gap"], 3) for row in found] == [-0.125, -0.125, 0.125, -0.5]
    assert [row["right"] for row in found] == [False, False, True, None]
    assert found[2]["picture"].startswith("data:image/jpeg;base64,")
    assert found[0]["picture"].startswith("data:image/png;base64,")
    assert len(examples(run_of(folder, MadeEngine(vectors), tmp_path / "runs"), count=2)[0]) == 2


@pytest.mark.parametrize(
    ("text", "perturbed", "before", "after"),
    [
        ("a red dog", "a blue dog", "a <del>red</del> dog", "a <mark>blue</mark> dog"),
        ("a dog", "a photo of a dog", "a dog", "<mark>a photo of</mark> a dog"),
        ("a <b> dog", "a <i> & dog", "a <del>&lt;b&gt;</del> dog", "a <mark>&lt;i&gt; &amp;</mark> dog"),
        ("<script>", "<script>", "&lt;script&gt;", "&lt;script&gt;"),
        ("a dog", "a", "a <del>dog</del>", "a"),
        ("", "", "", ""),
    ],
)
def test_changed_words_are_marked(text, perturbed, before, after):
    assert marked(text, perturbed) == (before, after)


def test_contract(run):
    summary = contract.summary(run)
    profile = run.profile()
    assert summary["metrics"].keys() == {"E_inv", "E_sens", "PR"}
    for name, kind in (("E_inv", "paraphrase"), ("E_sens", "flip"), ("PR", "flip")):
        row = profile.filter(metric=name, kind=kind, family="all").row(0, named=True)
        assert summary["metrics"][name] == {key: row[key] for key in ("value", "ci_low", "ci_high", "n")}
    assert len(summary["strata"]) == len(profile)
    assert summary["weights"] == "random"
    assert summary["skipped"][0]["image_id"] == "13"
    json.dumps(summary, allow_nan=False)


def test_headline_without_pairs():
    empty = {"value": None, "ci_low": None, "ci_high": None, "n": 0}
    assert contract.headline(pl.DataFrame(schema=PROFILE), "PR", "flip") == empty


@pytest.fixture
def screen():
    """A terminal that is too narrow."""
    return Console(file=io.StringIO(), width=60, force_terminal=False)


def test_terminal_shows_the_run(run, screen):
    console.print_run(screen, run)
    text = screen.file.getvalue()
    for row in run.profile().iter_rows(named=True):
        assert f"{row['value']:.4f}" in text
    for part in (
        "LGIP profile of toy",
        "weights    random",
        "coco-val, 12 images, 26 captions",
        "1 images skipped",
        "skipped    val/000000000013.png: UnidentifiedImageError",
        "fp16 executed as fp32 (cast)",
        str(run.folder),
    ):
        assert part in text, part
    assert "\x1b" not in text
    assert "FAILED" not in text


def test_terminal_says_failed(run, screen):
    console.print_run(screen, dataclasses.replace(run, stamp=run.stamp | {"error": "[red]one[/red] reason"}))
    assert "FAILED     [red]one[/red] reason" in screen.file.getvalue()


def test_terminal_shows_the_comparison(run, screen):
    console.print_comparison(screen, compare(run, run))
    text = screen.file.getvalue()
    for part in (
        "toy: ort cpu fp16 against ort cpu fp16",
        "12 images",
        "sign changes: 0 of",
        "verdict: inconclusive",
    ):
        assert part in text, part
    assert re.search(r"image min 1\.000000, image p1 1\.000000, text min 1\.000000", text)
