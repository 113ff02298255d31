from __future__ import annotations

import pytest

from lgip_ort.errors import did_you_mean


@pytest.mark.parametrize(
    ("word", "expected"),
    [("cudaa", "; did you mean 'cuda'?"), ("xyz", "; known: cpu, cuda"), ("", "; known: cpu, cuda")],
)
def test_suggestion(word, expected):
    assert did_you_mean(word, ["cpu", "cuda"]) == expected
