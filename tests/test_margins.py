from __future__ import annotations

import pytest

from lgip_ort.errors import UsageFault
from lgip_ort.margins import Margin, read_margins
from lgip_ort.metrics import MATCHED_GAP, METRICS


def test_every_metric_has_a_margin():
    margins = read_margins()
    names = {metric.name for metric in (*METRICS, MATCHED_GAP)} | {"R@1", "R@5", "R@10"}
    assert all(margins.of(name).at(0.5) > 0 for name in names)
    assert margins.min_images == 30
    assert margins.of("R@1") == margins.of("R@10") == margins.by_metric["recall"]


def test_the_larger_of_absolute_and_relative():
    margin = Margin(0.01, 0.1)
    assert [margin.at(value) for value in (0.05, 0.1, 0.5, -0.5)] == pytest.approx([0.01, 0.01, 0.05, 0.05])


def test_a_file_replaces_what_it_names(tmp_path):
    file = tmp_path / "m.toml"
    file.write_text("min_images = 100\n[PR]\nabsolute = 0.02\n[E_inv]\nrelative = 0\n")
    own, margins = read_margins(), read_margins(file)
    assert margins.min_images == 100
    assert margins.of("PR") == Margin(0.02, own.of("PR").relative)
    assert margins.of("E_inv") == Margin(own.of("E_inv").absolute, 0)
    assert margins.of("E_sens") == own.of("E_sens")
    assert margins.table()["PR"] == {"absolute": 0.02, "relative": 0.0}
    assert list(margins.table()) == list(own.table())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[P]\nabsolute = 1", "no metric 'P'; did you mean"),
        ("[PR]\nabsolut = 1", "PR.absolut is unknown; did you mean 'absolute'"),
        ("[PR]\nabsolute = -0.1", "PR.absolute is -0.1, a number from 0 up expected"),
        ("[PR]\nabsolute = nan", "PR.absolute is nan, a number"),
        ("[PR]\nabsolute = inf", "PR.absolute is inf, a number"),
        ("[PR]\nabsolute = true", "PR.absolute is True, a number"),
        ("[PR]\nabsolute = '1'", "PR.absolute is '1', a number"),
        ("PR = 0.1", "PR is 0.1, a table of absolute and relative expected"),
        ("min_images = 1", "min_images is 1, a whole number from 2 up expected"),
        ("min_images = 3.5", "min_images is 3.5, a whole number"),
        ("min_images = true", "min_images is True, a whole number"),
        ("[PR", "not a table of margins"),
        (None, "not a table of margins: .*No such file"),
    ],
)
def test_a_file_that_is_none(tmp_path, text, message):
    file = tmp_path / "m.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageFault, match=f"m.toml: {message}"):
        read_margins(file)
