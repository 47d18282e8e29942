from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.schema import TABLES as READ
from dflash.lab.results import (
    SCHEMA_VERSION,
    TABLES,
    VERSION_KEY,
    read_table,
    write_results,
    write_table,
)
from dflash.model.errors import UserError

KINDS = {
    "str": pa.string(),
    "int": pa.int64(),
    "bool": pa.bool_(),
    "bool?": pa.bool_(),
    "int?": pa.int64(),
}
ROW = {
    "run_id": "a-s0",
    "bench": "gsm8k",
    "slot": 1,
    "reached": 10,
    "accepted": 4,
    "censored": 0,
    "labelled": 10,
    "correct": 4,
}


@pytest.mark.parametrize("name", TABLES)
def test_what_is_written_is_what_analysis_reads(name):
    assert TABLES[name].names == list(READ[name])
    for column, (kind, _) in READ[name].items():
        written = TABLES[name].field(column).type
        if kind == "float":
            assert pa.types.is_floating(written) or pa.types.is_integer(written)
        else:
            assert written == KINDS[kind]


def test_round_trip_keeps_types_and_version(tmp_path):
    path = tmp_path / "survival.parquet"
    write_table(path, "survival", [ROW])
    schema = pq.read_schema(path)
    assert schema.metadata[VERSION_KEY] == str(SCHEMA_VERSION).encode()
    assert schema.equals(TABLES["survival"])
    assert read_table(path) == [ROW]


def test_an_empty_table_still_has_its_columns(tmp_path):
    write_results(tmp_path, {name: [] for name in TABLES})
    for name, schema in TABLES.items():
        assert pq.read_schema(tmp_path / f"{name}.parquet").equals(schema)


@pytest.mark.parametrize("row", [ROW | {"extra": 1}, {"run_id": "a"}])
def test_a_row_of_another_shape_is_refused(tmp_path, row):
    with pytest.raises(ValueError, match="differs from the schema"):
        write_table(tmp_path / "t.parquet", "survival", [row])
    assert list(tmp_path.iterdir()) == []


def test_other_versions_and_damage_are_named(tmp_path):
    path = tmp_path / "survival.parquet"
    pq.write_table(pa.table({"slot": [1]}), path)
    with pytest.raises(UserError, match="schema version none"):
        read_table(path)
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(UserError, match="not readable"):
        read_table(path)
