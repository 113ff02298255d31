from __future__ import annotations

from collections import Counter

from lgip_ort.perturb.draw import draw


def test_draw_is_without_replacement():
    for n in range(200):
        assert sorted(draw("abcdef", 6, n)) == list("abcdef")
        assert len(set(draw("abcdef", 4, n))) == 4
    assert sorted(draw("ab", 5, "more than there are")) == ["a", "b"]
    assert draw([], 3, "none") == []


def test_draw_depends_on_the_whole_key():
    keys = [(seed, image, index, kind) for seed in (0, 1) for image in ("1", "2") for index in (0, 1) for kind in "ab"]
    assert len({tuple(draw(range(20), 20, *key)) for key in keys}) == len(keys)
    assert draw(range(20), 20, "ab", "c") != draw(range(20), 20, "a", "bc")
    assert draw(range(20), 5, 0, "1") == draw(range(20), 20, 0, "1")[:5]


def test_draw_is_uniform():
    """Chi-squared of pairs of places over 9,000 keys; 71 degrees of freedom, 120 is beyond the 0.9998 quantile."""
    seen = Counter(tuple(draw(range(9), 2, "key", i)) for i in range(9000))
    expected = 9000 / 72
    assert len(seen) == 72
    assert sum((n - expected) ** 2 / expected for n in seen.values()) < 120
