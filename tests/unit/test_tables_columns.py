"""Rows given as columns are written as the same table as the data frame of those columns."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from causal_priors.tables import SCHEMAS, read_metadata, read_table, write_table

COLUMNS = {
    "step": range(3),
    "layer": [0, 1, -1],
    "head": np.array([3, 2, 1]),
    "quantity": ["exponent", "", "ein Maß, 度"],
    "value": (0.1 + 0.2, float("inf"), -0.0),
}


def test_columns_and_frames_make_the_same_table(tmp_path):
    write_table(COLUMNS, tmp_path / "columns.parquet", "positions", {"status": "finished"})
    write_table(pd.DataFrame(COLUMNS), tmp_path / "frame.parquet", "positions", {"status": "finished"})
    columns, frame = (pq.read_table(tmp_path / name) for name in ("columns.parquet", "frame.parquet"))
    assert columns.equals(frame, check_metadata=True)
    assert columns.to_pydict()["quantity"] == COLUMNS["quantity"]
    assert read_metadata(tmp_path / "columns.parquet", "positions")["status"] == "finished"


def test_a_table_without_rows_has_its_columns(tmp_path):
    write_table({name: [] for name in COLUMNS}, tmp_path / "x.parquet", "positions")
    found = read_table(tmp_path / "x.parquet", "positions")
    assert found.columns.tolist() == SCHEMAS["positions"].names
    assert found.empty


def test_not_a_number_stays_one(tmp_path):
    write_table({**COLUMNS, "value": [1.0, float("nan"), 2.0]}, tmp_path / "x.parquet", "positions")
    assert np.isnan(read_table(tmp_path / "x.parquet", "positions")["value"]).tolist() == [False, True, False]


def test_a_number_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(OverflowError):
        write_table({**COLUMNS, "head": [0, 1, 40_000]}, tmp_path / "x.parquet", "positions")
    assert not (tmp_path / "x.parquet").exists()
