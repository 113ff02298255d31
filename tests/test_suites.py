from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lgip_ort.perturb.lexicon import standard
from lgip_ort.perturb.suites import SUITES, ImageCaptions, Options, Perturbation

GOLDEN = Path(__file__).parent / "golden"
ODD = [
    "A dog\nnear a\tcat.\r\n",
    "  two   red  dogs  ",
    "A dog on a bed",
    "A MAN RIDING TWO RED HORSES IN FRONT OF A BUS.",
    "",
    " \n",
    "...",
    "two red dogs and " * 50,
    "一只红色的狗坐在床上",
    "كلب أحمر على السرير",
    "Δύο σκύλοι στο κρεβάτι İstanbul ß",
    "👍 two red dogs 🐕‍🦺 on a bed 👨‍👩‍👧",
    "“Two” red 'dogs' on a \"bed\"",
    "<b>Two</b> red dogs &amp; a <img src=x onerror=alert(1)> bed",
    "two {red} {} {0} dogs {",
    "a 2² ② ٢ dogs",
    "x\0y two dogs",
    "a",
    "A",
    "There is",
    "a a an the",
    "a few",
    "one",
]
PIECES = ["A", "a", "an", "the", "Two", "2", "red", "orange", "dog", "dogs", "TV", "hot dog", "man", "people", "is", "are",
          "sitting", "riding", "on", "in front of", "next to", "and", "with", "one of", "large", "couch", "some", "several",
          "There", "photo of", ".", ",", "'s", "-", "\n", "  ", "犬", "👍", "<b>", "{}", '"', "²", "É", "I"]  # fmt: skip
captions = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(PIECES), max_size=14).map(" ".join),
    st.lists(st.sampled_from(PIECES), max_size=10).map("".join),
    st.lists(st.sampled_from(PIECES), max_size=10).map(" ".join).map(str.upper),
)


def run(suite, *texts, seed=0, image_id="1", annotated=None, pool="wrappers"):
    image = ImageCaptions(image_id, list(enumerate(texts)), annotated)
    return list(SUITES[suite](image, seed, Options(pool)))


def plain(text):
    """What has to differ: not case, not white space, not final punctuation."""
    return re.sub(r"[.!?,;\s]+$", "", re.sub(r"\s+", " ", text.lower())).strip()


@pytest.mark.parametrize(
    ("file", "pool"), [("paper_suite.json", "wrappers"), ("paper_advanced.json", "advanced")]
)  # fmt: skip
def test_golden(file, pool):
    """The words of a published table never change silently."""
    for case in json.loads((GOLDEN / file).read_text(encoding="utf-8"))["cases"]:
        image = ImageCaptions(case["image_id"], [(case["caption_index"], case["caption"])])
        found = list(SUITES["paper"](image, case["seed"], Options(pool)))
        assert [[p.kind, p.family, p.perturbed, p.source_word, p.target_word] for p in found] == case["perturbations"]
        assert {(p.caption_index, p.strength, p.verified) for p in found} == {(case["caption_index"], None, None)}


def test_paper_suite():
    text = "two red dogs and one dog on a train.\n"
    made = run("paper", text, text, seed=3)
    first, second = [[p for p in made if p.caption_index == i] for i in (0, 1)]
    assert [p.kind for p in first] == ["paraphrase"] * 6 + ["flip"] * 3 + ["identity"]
    assert [p.kind for p in second] == ["paraphrase"] * 6 + ["flip"] * 3
    assert [(p.family, p.source_word) for p in first[6:9]] == [("colour", "red"), ("count", "two"), ("object", "dog")]
    assert len({p.perturbed for p in first}) == len(first)
    assert all("\n" not in p.perturbed for p in first[:9])
    assert all(p.perturbed == p.target_word.format(text.strip()) for p in first[:6])
    assert first[9].perturbed == text
    assert first[:6] != [p._replace(caption_index=0) for p in second[:6]]


def test_paper_suite_with_the_advanced_pool():
    made = run("paper", "A red cat sits on a computer.", pool="advanced")
    assert [p.kind for p in made] == ["paraphrase"] * 6 + ["flip"] * 2 + ["combined"] * 6 + ["identity"]
    wrapped = [p for p in made if p.kind == "paraphrase" and p.family == "wrapper"]
    assert all(p.perturbed == p.target_word.format("A red cat sits on a computer.") for p in wrapped)
    families = {p.family for i in range(30) for p in run("paper", "A cat sits on a computer.", seed=i, pool="advanced")
                if p.kind == "paraphrase"}  # fmt: skip
    assert families == {"wrapper", "synonym", "passive"}
    assert run("paper", "A red cat.")[6:8] == run("paper", "A red cat.", pool="advanced")[6:8]


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("count", [1, 5, 7])
def test_images_with_any_number_of_captions(suite, count):
    """Every caption is perturbed; the control stands beside the first one alone."""
    made = run(suite, *[f"A dog on bed number {i}." for i in range(count)])
    assert {p.caption_index for p in made if p.kind == "paraphrase"} == set(range(count))
    assert [p for p in made if p.kind == "identity"] == [
        Perturbation(0, "identity", "identity", "A dog on bed number 0.")
    ]


def test_strict_suite():
    made = run("strict", "Two grey dogs sitting on a couch.")
    assert {(p.kind, p.family) for p in made} == {
        ("paraphrase", "wrapper"),
        ("paraphrase", "synonym"),
        ("paraphrase", "order"),
        ("paraphrase", "existential"),
        ("paraphrase", "number style"),
        ("flip", "object"),
        ("flip", "colour"),
        ("flip", "count"),
        ("identity", "identity"),
    }
    assert all((p.strength is None) == (p.kind != "flip") for p in made)
    assert {p.verified for p in made if p.kind == "flip"} == {True}
    spatial = [p for p in run("strict", "A man standing behind a car") if p.family == "spatial"]
    assert [(p.source_word, p.target_word, p.verified) for p in spatial] == [("behind", "in front of", None)]


def test_captions_of_an_image_are_checked_together():
    """What one caption names is no falsification of another."""
    caption, others = "A blue dog beside two beds", ["cats and cows", "a red thing", "three of them"]
    alone, beside = set(), set()
    for seed in range(200):
        alone |= {p.target_word for p in run("strict", caption, seed=seed) if p.kind == "flip"}
        beside |= {p.target_word for p in run("strict", caption, *others, seed=seed) if p.caption_index == 0}
    assert alone >= {"red", "three", "horse"}
    assert beside.isdisjoint({"red", "three", "cat", "cow"})
    assert beside >= {"four", "yellow", "horse"}


def test_annotations_are_checked():
    for seed in range(100):
        made = run("strict", "A dog on a rock", seed=seed, annotated=frozenset(standard().categories) - {"cow"})
        assert {p.target_word for p in made if p.family == "object"} <= {"cow"}


def test_captions_do_not_depend_on_their_neighbours_but_for_what_they_name():
    text = "Two grey dogs sitting on a couch."
    assert run("strict", text) == [p for p in run("strict", text, "something else") if p.caption_index == 0]
    assert run("strict", text, image_id="2") != run("strict", text)
    assert run("strict", text, seed=1) != run("strict", text)


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("text", ODD, ids=lambda text: repr(text[:20]))
def test_odd_captions(suite, text):
    check(suite, text, "A second dog.")


@settings(max_examples=400)
@given(st.lists(captions, min_size=1, max_size=3))
@example(["A dog", "A dog"])
def test_any_captions(texts):
    for suite in SUITES:
        check(suite, *texts)


def check(suite, *texts):
    """No crash, and what comes out is of use, whatever went in."""
    made = run(suite, *texts, pool="advanced")
    assert made == run(suite, *texts, pool="advanced")
    assert [p.perturbed for p in made if p.kind == "identity"] == [texts[0]]
    for p in made:
        if p.kind == "identity":
            continue
        assert p.perturbed == p.perturbed.strip() != ""
        if suite == "strict":
            assert plain(p.perturbed) != plain(texts[p.caption_index])
            if p.source_word is not None:
                assert located(texts[p.caption_index].strip(), p)
    if suite == "paper":
        wrapped = run(suite, *texts)
        assert all(sum(p.caption_index == i and p.family == "wrapper" for p in wrapped) == 6 for i in range(len(texts)))


def located(text, p):
    """Whether the words of a perturbation say where its edit is, and only an article right before changes besides."""
    found = False
    for match in re.finditer(re.escape(p.source_word), text):
        head, tail = text[: match.start()], text[match.end() :]
        an = re.search(r"\ban?(?=\s+$)", head, re.IGNORECASE)
        heads = [head]
        if an:
            # Letters of the article's own case: A, AN, An or a, an.
            heads += [head[: an.start()] + new + head[an.end() :] for new in ("a", "an", "A", "An", "AN")]
        found |= p.perturbed in {h + p.target_word + tail for h in heads}
    if p.family == "object":
        found |= p.source_word in text and p.target_word in p.perturbed
    return found


# --- all captions of COCO val2017 ---


def test_share_of_captions_that_strict_changes(val2017, strict_val2017):
    captions = len(val2017.captions)
    assert captions == 25_014

    def share(rows):
        return strict_val2017.filter(rows).select("image_id", "caption_index").n_unique() / captions

    assert share(pl.col("kind") == "flip") >= 0.7
    assert share((pl.col("kind") == "paraphrase") & (pl.col("family") != "wrapper")) >= 0.6


def test_no_strict_perturbation_equals_its_caption(strict_val2017):
    rows = strict_val2017.filter(pl.col("kind") != "identity").select("text", "perturbed")
    assert len(rows) > 50_000
    assert [row for row in rows.iter_rows() if plain(row[0]) == plain(row[1])] == []


def test_edits_are_where_strict_says(strict_val2017):
    """One edit but for objects, of which every mention changes."""
    rows = strict_val2017.filter(pl.col("source_word").is_not_null())
    assert set(rows["family"]) >= {"object", "colour", "count", "spatial", "size", "synonym", "number style"}
    wrong = []
    for row in rows.iter_rows(named=True):
        p = Perturbation(0, row["kind"], row["family"], row["perturbed"], row["source_word"], row["target_word"])
        if not located(row["text"].strip(), p):
            wrong.append(row)
    assert wrong == []


def test_objects_change_at_every_mention_and_nowhere_else(strict_val2017):
    """The caption with every form of the old name replaced, written with other code."""
    names = standard().names
    forms = {}
    for phrase, name in names.items():
        forms.setdefault(name.lemma, {})[name.plural] = " ".join(phrase)
    longest_first = sorted((" ".join(phrase) for phrase in names), key=len, reverse=True)
    part = r"[^\W_]"
    name_there = re.compile(
        rf"(?<!{part})(?<!{part}['’.-])(?:{'|'.join(p.replace(' ', chr(92) + 's+') for p in longest_first)})(?!['’.-]?{part})"
    )

    def without_articles(text):
        return re.sub(r"\ban?\b", "a", text.lower())

    wrong = []
    for text, perturbed, source, target in (
        strict_val2017.filter(pl.col("family") == "object")
        .select("text", "perturbed", "source_word", "target_word")
        .iter_rows()
    ):
        old, new = (names[tuple(word.lower().split())] for word in (source, target))
        new_forms = {False: "sheep", True: "sheep"} if new.lemma == "sheep" else forms[new.lemma]
        if "sheep" not in (old.lemma, new.lemma) and old.plural != new.plural:
            wrong.append((text, perturbed))
        if old.lemma == "sheep":
            continue

        def exchanged(match, old=old, new_forms=new_forms):
            name = names[tuple(match[0].split())]
            return new_forms[name.plural] if name.lemma == old.lemma else match[0]

        if without_articles(name_there.sub(exchanged, text.strip().lower())) != without_articles(perturbed):
            wrong.append((text, perturbed))
    assert wrong == []


def test_no_strict_flip_names_what_the_image_shows(val2017, strict_val2017):
    """Neither what any of its captions names, as a whole word anywhere, nor what is annotated in it."""
    lexicon = standard()
    captions = dict(val2017.captions.group_by("image_id").agg(pl.col("text").str.join("\n")).iter_rows())
    annotated = dict(val2017.annotated.group_by("image_id").agg("category").iter_rows())
    by_category = {}
    for phrase, name in lexicon.names.items():
        by_category.setdefault(name.category, set()).add(" ".join(phrase))
    values = lexicon.numbers | {str(n): n for n in range(2, 11)}
    flips = strict_val2017.filter(pl.col("verified"))
    assert set(flips["family"]) == {"object", "colour", "count"}
    assert flips["image_id"].is_in(list(annotated)).sum() > 100
    wrong = []
    for image_id, family, target in flips.select("image_id", "family", "target_word").iter_rows():
        word = target.lower()
        if family == "object":
            category = lexicon.names[tuple(word.split())].category
            words = by_category[category]
            if category in annotated.get(image_id, ()):
                wrong.append((image_id, target, annotated[image_id]))
        elif family == "colour":
            words = {word, *(s for s, colour in lexicon.spellings.items() if colour == word)}
        else:
            words = {w for w, value in values.items() if value == values[word]}
        if re.search(rf"\b(?:{'|'.join(words)})\b", " ".join(captions[image_id].lower().split())):
            wrong.append((image_id, target, captions[image_id]))
    assert wrong == []
