"""Makes the tables beside it, by pyarrow 26.0.1 and lmdb 3.0.0.

    pip install pyarrow==26.0.1 lmdb==3.0.0 && python make_rows.py

`table.json` is what the rows are, worked out here from pyarrow's own values. Other versions of pyarrow write other bytes,
and the same rows. LMDB writes pages as they lie in memory; what is in their unused parts may differ.
"""

import datetime
import decimal
import json
import math
import shutil
import tempfile
from pathlib import Path

import lmdb
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

HERE = Path(__file__).parent
ROWS = 10
NAN, INF = float("nan"), float("inf")


def column(type, *values):
    """Ten values: those given, again and again, with a null in fourth place."""
    values = [values[i % len(values)] for i in range(ROWS)]
    values[3] = None
    return pa.array(values, type)


def table():
    D = decimal.Decimal
    utc = datetime.timezone.utc
    when = datetime.datetime(2024, 2, 29, 12, 34, 56, 789000)
    columns = {
        "bool": column(pa.bool_(), True, False),
        "i8": column(pa.int8(), -128, 127),
        "i16": column(pa.int16(), -32768, 32767),
        "i32": column(pa.int32(), -(2**31), 2**31 - 1),
        "i64": column(pa.int64(), -(2**63), 2**63 - 1),
        "u8": column(pa.uint8(), 0, 255),
        "u16": column(pa.uint16(), 0, 65535),
        "u32": column(pa.uint32(), 0, 2**32 - 1),
        "u64": column(pa.uint64(), 0, 2**64 - 1),
        "f16": column(pa.float16(), 0.5, -2.0, NAN),
        "f32": column(pa.float32(), 0.25, -3.5, INF),
        "f64": column(pa.float64(), 0.1, -1e300, NAN, -INF),
        "text": column(pa.string(), "one", "", "zwei ü"),
        "large_text": column(pa.large_string(), "a", "bc"),
        "view": column(pa.string_view(), "short", "longer than twelve bytes"),
        "binary": column(pa.binary(), b"\x00\xff", b""),
        "fixed": column(pa.binary(3), b"abc", b"\x01\x02\x03"),
        "decimal": column(pa.decimal128(9, 2), D("1234567.89"), D("-0.05")),
        "wide": column(pa.decimal256(60, 4), D("12345678901234567890123456789012345678901234.5678")),
        "date": column(pa.date32(), datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)),
        "time_ms": column(pa.time32("ms"), datetime.time(1, 2, 3, 4000), datetime.time(23, 59, 59)),
        "time_us": column(pa.time64("us"), datetime.time(1, 2, 3, 4), datetime.time(0, 0, 0)),
        "stamp_ms": column(pa.timestamp("ms"), when, datetime.datetime(1969, 12, 31, 23, 59, 59)),
        "stamp_utc": column(pa.timestamp("us", tz="UTC"), when.replace(tzinfo=utc)),
        "stamp_zone": column(pa.timestamp("ns", tz="Europe/Berlin"), when.replace(tzinfo=utc)),
        "list": column(pa.list_(pa.int32()), [1, None, 3], []),
        "nested": column(pa.list_(pa.list_(pa.string())), [["a"], None, []], [["b", "c"]]),
        "struct": column(
            pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.string())]))]),
            {"x": 1, "y": {"z": "deep"}},
            {"x": None, "y": None},
        ),
        "map": column(pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", None)], []),
        "pairs": column(pa.map_(pa.int32(), pa.string()), [(1, "one"), (2, None)]),
        "dictionary": column(pa.dictionary(pa.int8(), pa.string()), "red", "green"),
        "vector": column(pa.list_(pa.float32(), 3), [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]),
        "nothing": pa.nulls(ROWS),
        "index": pa.array(range(ROWS), pa.int64()),
        "point": pa.FixedSizeListArray.from_arrays(pa.array([i / 2 for i in range(2 * ROWS)], pa.float32()), 2),
    }
    return pa.table(columns)


def moment(total, unit, zone):
    """A number of units since 1970 as text, worked out apart from the library's way."""
    per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    seconds, part = divmod(total, per)
    nanos = part * (10**9 // per)
    text = (datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)).isoformat()
    return text + fraction(nanos) + ("Z" if zone else "")


def fraction(nanos):
    if nanos == 0:
        return ""
    digits = f"{nanos:09}"
    for keep in (3, 6):
        if not digits[keep:].strip("0"):
            return "." + digits[:keep]
    return "." + digits


def plain(type, value):
    """A value as JSON has it."""
    if value is None:
        return None
    if pa.types.is_floating(type):
        return value if math.isfinite(value) else None
    if pa.types.is_decimal(type):
        return format(value, "f")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.time):
        return value.replace(microsecond=0).isoformat() + fraction(value.microsecond * 1000)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if pa.types.is_map(type):
        pairs = [[plain(type.key_type, k), plain(type.item_type, v)] for k, v in value]
        return dict(map(tuple, pairs)) if pa.types.is_string(type.key_type) else pairs
    if pa.types.is_struct(type):
        return {field.name: plain(field.type, value[field.name]) for field in type}
    if isinstance(value, list):
        return [plain(type.value_type, one) for one in value]
    return value


def rows(table):
    columns = {}
    for field in table.schema:
        values = table[field.name].combine_chunks()
        if pa.types.is_timestamp(field.type):
            numbers = values.cast(pa.int64()).to_pylist()
            unit, zone = field.type.unit, field.type.tz
            columns[field.name] = [None if n is None else moment(n, unit, zone) for n in numbers]
        else:
            columns[field.name] = [plain(field.type, value) for value in values.to_pylist()]
    return [{name: values[row] for name, values in columns.items()} for row in range(len(table))]


def arrow(name, table, stream=False, **options):
    options = ipc.IpcWriteOptions(**options)
    new = ipc.new_stream if stream else ipc.new_file
    with new(str(HERE / name), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=4)


def deltas():
    """A stream whose dictionary grows, and one whose dictionary is replaced."""
    type = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema([("color", type)])
    batches = [
        pa.record_batch([pa.DictionaryArray.from_arrays(pa.array(keys, pa.int8()), names)], schema=schema)
        for keys, names in [([0, 1], ["red", "green"]), ([2, 0], ["red", "green", "blue"])]
    ]
    for name, delta in [("delta.arrows", True), ("replaced.arrows", False)]:
        options = ipc.IpcWriteOptions(emit_dictionary_deltas=delta)
        with ipc.new_stream(str(HERE / name), schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)


def mdb():
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "data.mdb")
        with lmdb.open(path, subdir=False, map_size=1 << 16, max_dbs=2, sync=False) as env:
            with env.begin(write=True) as txn:
                for i in range(12):
                    txn.put(f"image-{i:04}".encode(), bytes([i]) * (i * 7))
                txn.put(b"big", bytes(range(256)) * 20)
        shutil.copy(path, HERE / "plain.mdb")
        named = str(Path(folder) / "named.mdb")
        with lmdb.open(named, subdir=False, map_size=1 << 16, max_dbs=2, sync=False) as env:
            with env.begin(write=True) as txn:
                for name in (b"images", b"labels"):
                    db = env.open_db(name, txn=txn)
                    for i in range(3):
                        txn.put(str(i).encode(), name + str(i).encode(), db=db)
        shutil.copy(named, HERE / "named.mdb")


def paged():
    """Files with a page index, and pages of some rows."""
    numbers = range(300)
    many = pa.table({
        "index": pa.array(numbers, pa.int64()),
        "word": [None if n % 5 == 0 else f"word {n % 7}" for n in numbers],
        "list": pa.array([None if n % 6 == 0 else [n * 10 + at for at in range(n % 4)] for n in numbers], pa.list_(pa.int32())),
    })
    for version in ("1.0", "2.0"):
        pq.write_table(
            many,
            HERE / f"paged-v{version[0]}.parquet",
            row_group_size=180,
            data_page_size=128,
            write_batch_size=16,
            data_page_version=version,
            write_page_index=True,
            write_page_checksum=True,
            write_statistics=False,
            use_dictionary=["word"],
            compression="snappy",
        )


def statistics():
    """A file with statistics of row groups and pages, in an order that lets them exclude rows."""
    numbers = range(300)
    start = datetime.datetime(2024, 2, 29)
    D = decimal.Decimal
    many = pa.table({
        "index": pa.array(numbers, pa.int64()),
        "u32": pa.array([2**32 - 300 + n for n in numbers], pa.uint32()),
        "float": pa.array([NAN if n % 50 == 49 else n for n in numbers], pa.float64()),
        "text": [f"text {n:04}" for n in numbers],
        "price": pa.array([D(n) / 100 for n in numbers], pa.decimal128(9, 2)),
        "at": pa.array([start + datetime.timedelta(seconds=n) for n in numbers], pa.timestamp("ms")),
        "color": pa.array([("blue", "green", "red")[n // 100] for n in numbers]).dictionary_encode(),
        "half": pa.array([n / 2 if n < 200 else None for n in numbers], pa.float32()),
    })
    pq.write_table(
        many,
        HERE / "statistics.parquet",
        row_group_size=100,
        data_page_size=1,
        write_batch_size=20,
        write_page_index=True,
        write_statistics=True,
        compression="snappy",
    )


def main():
    everything = table()
    (HERE / "table.json").write_text(json.dumps(rows(everything), ensure_ascii=False, indent=None) + "\n")
    # Parquet has no views of its own and no floats of 16 bits in old readers: pyarrow writes both.
    pq.write_table(
        everything,
        HERE / "table.parquet",
        row_group_size=4,
        write_page_checksum=True,
        write_statistics=False,
        compression="snappy",
    )
    small = everything.select(["index", "text", "f64", "list"])
    for codec in ("none", "snappy", "gzip", "zstd", "lz4", "brotli"):
        for version in ("1.0", "2.0"):
            name = f"{codec}-v{version[0]}.parquet"
            pq.write_table(
                small,
                HERE / name,
                compression=codec,
                data_page_version=version,
                row_group_size=5,
                write_page_checksum=True,
                write_statistics=False,
            )
    paged()
    statistics()
    arrow("table.arrow", everything)
    arrow("table.arrows", everything, stream=True)
    arrow("zstd.arrow", everything.select(["index", "text", "f64", "dictionary"]), compression="zstd")
    arrow("lz4.arrows", everything.select(["index", "text", "f64", "dictionary"]), stream=True, compression="lz4")
    deltas()
    mdb()


main()
