from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest
from made import lengths_of, make_table

from lgip_ort.stored import store
from lgip_ort.table import table_sha256

IMAGES = pl.DataFrame({"image_id": [f"i{n}" for n in range(7)], "path": ["x.png"] * 7})
ROWS = [("i0", 3), ("i1", 1), ("i3", 4), ("i4", 2), ("i6", 1)]  # i2 and i5 have none


@pytest.fixture
def table():
    names = [(image_id, "flip", "colour") for image_id, n in ROWS for _ in range(n)]
    n = len(names)
    return make_table(names, text_length=[5 + i for i in range(n)], perturbed_length=[4] * n)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 512])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_shards_are_the_table_in_slices(table, tmp_path, size, parts):
    cuts = {1: [0, 11], 2: [0, 4, 11], 3: [0, 3, 8, 11]}[parts]
    stored = store([table[a:b] for a, b in pairwise(cuts)], IMAGES, tmp_path / "t.parquet")
    shards = list(stored.shards(size))
    assert (stored.rows, stored.sha256, stored.lengths) == (11, table_sha256(table), lengths_of(table))
    assert pl.concat([stored.pairs(shard) for shard in shards]).equals(table)
    assert pl.concat([shard.images for shard in shards]).equals(IMAGES)
    for number, shard in enumerate(shards):
        rows = stored.pairs(shard)
        assert (shard.index, len(rows)) == (number, shard.rows)
        assert set(rows["image_id"]) <= set(shard.images["image_id"])
        assert shard.name == f"{number:05d}-{table_sha256(rows)[:8]}.parquet"


def test_no_pairs(tmp_path):
    stored = store([], IMAGES, tmp_path / "t.parquet")
    assert (stored.rows, stored.lengths) == (0, None)
    assert [len(stored.pairs(shard)) for shard in stored.shards(4)] == [0, 0]


def test_pairs_in_another_order(table, tmp_path):
    with pytest.raises(ValueError, match="pairs of image i0 out of the order of the images"):
        store([table[3:], table[:3]], IMAGES, tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="pairs of image i3 out of the order of the images"):
        store([table], IMAGES[[0, 3, 1, 2, 4, 5, 6]], tmp_path / "t.parquet")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("unknown", [0, 3, 6], ids=["first", "in the middle", "last"])
def test_pairs_of_images_that_are_unknown(table, tmp_path, unknown):
    with pytest.raises(ValueError, match=f"pairs of image i{unknown} "):
        store([table], IMAGES.filter(pl.col("image_id") != f"i{unknown}"), tmp_path / "t.parquet")
