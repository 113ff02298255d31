from __future__ import annotations

from pathlib import Path

import pytest

import lgip_ort.perturb
from lgip_ort.errors import UsageFault
from lgip_ort.perturb.custom import read_lexicon
from lgip_ort.perturb.lexicon import standard
from lgip_ort.perturb.suites import SUITES, ImageCaptions, Options

FASHION = """\
[objects]
dress = { group = "clothes", names = ["dress/dresses", "gown"], also = ["skirt"] }
"ankle boot" = { group = "clothes", names = ["ankle boot"], also = ["boot", "boots"] }

[exchange]
same_group = { clothes = ["dress", "ankle boot"] }

[colours]
taupe = { lab = [52.0, 3.0, 10.0], alike = ["brown"] }

[colour_spellings]
ecru = "taupe"

[synonyms]
nouns = [["gown", "evening dress/evening dresses"]]
phrases = [{ from = "made of", to = "of" }]

[wrappers]
clause = ["Seen here: {}"]

[fixed]
expressions = ["dress code"]

[sizes]
pairs = [["wide", "narrow"]]
"""


@pytest.fixture
def written(tmp_path):
    """Reads a lexicon of this text; what it says is a fault names the file as `own.toml`."""

    def write(content):
        path = tmp_path / "own.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_lexicon(path)

    return write


def made(lexicon, caption, draws=150):
    """(family, text) of all that suite `strict` makes of a caption."""
    image, options = ImageCaptions("1", [(0, caption)]), Options(lexicon=lexicon)
    return {(p.family, p.perturbed) for seed in range(draws) for p in SUITES["strict"](image, seed, options)}


def test_entries_are_used(written):
    lexicon = written(FASHION)
    gown = made(lexicon, "A gown")
    assert ("object", "An ankle boot") in gown
    assert ("synonym", "An evening dress") in gown
    assert ("object", "Two dresses") in made(lexicon, "Two ankle boots")
    assert not {text for family, text in made(lexicon, "A dress code") if family == "object"}
    assert ("colour", "A taupe dog") in made(lexicon, "A red dog")
    assert {family for family, _ in made(lexicon, "An ecru dog")} >= {"colour"}
    assert ("colour", "A brown dog") not in made(lexicon, "An ecru dog")
    assert ("wrapper", "Seen here: a dog is on a bed") in made(lexicon, "A dog is on a bed")
    assert ("size", "A narrow bed") in made(lexicon, "A wide bed")
    assert ("synonym", "A dog of stone") in made(lexicon, "A dog made of stone")


def test_standard_entries_stay(written):
    lexicon = written(FASHION)
    assert set(lexicon.names) > set(standard().names)
    assert ("count", "Three dogs") in made(lexicon, "Two dogs")


def test_the_standard_lexicon_is_left_alone(written):
    before = made(None, "A gown and a red dog")
    written(FASHION)
    assert made(None, "A gown and a red dog") == before
    assert "dress" not in standard().categories


def test_named_entries_replace(written):
    lexicon = written("""
        [objects]
        dog = { group = "animal", names = ["hound"], also = [] }
        [colours]
        red = { lab = [0.0, 0.0, 0.0], alike = [] }
    """)
    assert ("dog",) not in lexicon.names
    assert ("object", "A hound") in made(lexicon, "A cat", draws=400)
    assert lexicon.colours["red"]["lab"] == [0, 0, 0]


def test_rewording_that_changes_nothing_but_case_and_punctuation_is_dropped(written):
    """Whatever a lexicon asks for."""
    lexicon = written("""
        [synonyms]
        phrases = [{ from = "on a rock", to = "On  a rock!" }, { from = "one rock", to = "a rock" }]
    """)
    assert not [text for family, text in made(lexicon, "A dog on a rock.") if family == "synonym"]
    assert ("synonym", "A dog on a rock.") in made(lexicon, "A dog on one rock.")


def test_nothing_changes_nothing(written):
    assert written("# nothing\n").data == standard().data


def test_the_standard_lexicon_has_the_form_that_is_checked():
    path = Path(lgip_ort.perturb.__file__).with_name("lexicon.toml")
    assert read_lexicon(path).data == standard().data


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("[colours\n", 1, "Expected"),
        ("\n\na = [1,\n2", 4, "Unclosed array"),
        (b"\n# caf\xe9\n", 2, "can't decode byte 0xe9"),
        (b"\xef\xbb\xbf[colours]\n", 1, "Invalid statement"),
        ("\n[colors]\n", 2, "unknown section 'colors'; did you mean 'colours'"),
        ("\nobjects = 3", 2, r"section \[objects\] expected, 3 found"),
        ("[numbers]\n\nwords = [1]", 3, r"numbers.words: a list of texts expected, \[1\] found"),
        ("[numbers]\nword = []", 2, "unknown entry 'word'; did you mean 'words'"),
        ("[grammar]\n# x\nadjective = []", 3, "unknown entry 'adjective'; did you mean 'adjectives'"),
        ("[wrappers]\nverse = []", 2, "unknown entry 'verse'"),
        ("[fixed]\nexpressions = 'x'", 2, "fixed.expressions: a list of texts expected, 'x' found"),
        ("[fixed]\nexpressions = ['x', ' ']", 2, "fixed.expressions"),
        ("[objects]\ncat = {}", 2, r"objects.cat: \{ group = text, names"),
        ("\n[objects.cat]\nnames = ['x']", 2, "objects.cat"),
        ("[objects]\n'fire hydrant' = { group = 'x', names = 'y', also = [] }", 2, "objects.fire hydrant"),
        ("[colours]\nred = { lab = [1, 2], alike = [] }", 2, "colours.red"),
        ("[colours]\nred = { lab = [1, 2, nan], alike = [] }", 2, "colours.red"),
        ("[colour_spellings]\nrouge = 'red'\nteal = 'cyan'", 3, "'teal' is a spelling of 'cyan', which is no colour"),
        ("[colour_spellings]\nteal = 3", 2, "colour_spellings.teal: a text expected, 3 found"),
        ("[spatial]\npairs = [['a', 'b']]\n[sizes]\npairs = [['a']]", 4, "sizes.pairs: a list of pairs"),
        ("[wrappers]\nclause = ['no place']", 2, "wrappers.clause: a list of texts with one {} each"),
        ("[wrappers]\nclause = ['{} {x}']", 2, "wrappers.clause"),
        ("[synonyms]\nnouns = [['a', 'b', 'c']]", 2, "synonyms.nouns: a list of pairs"),
        ("[synonyms]\nphrases = [{ from = 'a', to = 'b', after = '@verb' }]", 2, "synonyms.phrases"),
        ("[synonyms]\nphrases = [{ from = 'a' }]", 2, "synonyms.phrases"),
        ("[synonyms]\nphrases = [{ from = 'a', to = 'b', aftr = '@noun' }]", 2, "synonyms.phrases"),
        ("[verbs]\npassive = { ride = ['a'] }", 2, r"verbs.passive.ride: \[third person"),
        ("[verbs]\nfinite = []\n[verbs.passive]\nsew = ['sews', 'sewing', 'sewn']\nrun = 'runs'", 5, "verbs.passive.run"),
        ("[exchange]\nalways = ['unicorn']", 2, "exchange.always: 'unicorn' is no object that has a name"),
        ("[objects]\n\ncat = { group = 'animal', names = [], also = [] }", 3, "'cat' is no object that has a name"),
    ],
)  # fmt: skip
def test_fault_names_file_and_line(written, content, line, message):
    with pytest.raises(UsageFault, match=rf"own\.toml:{line}: .*{message}"):
        written(content)


def test_lexicon_that_is_not_there(tmp_path):
    with pytest.raises(UsageFault, match=r"nowhere\.toml: "):
        read_lexicon(tmp_path / "nowhere.toml")
