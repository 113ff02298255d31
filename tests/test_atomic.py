from __future__ import annotations

import pytest

from lgip_ort.atomic import replacing, write_json


def test_file_appears_whole(tmp_path):
    path = tmp_path / "new/folder/file"
    with replacing(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
        assert temporary.parent == path.parent  # a rename between file systems is no rename
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


def test_failure_keeps_what_was_there(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(RuntimeError, match="half way"), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError("half way")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_numbers_that_json_lacks(tmp_path, value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"a": [value]})
    assert list(tmp_path.iterdir()) == []
