"""Makes the rows and values beside it: by json and csv of Python 3.11, msgpack 1.2.4, safetensors 0.8.0 and numpy 2.4.6."""

import csv
import json
from pathlib import Path

import msgpack
import numpy
from safetensors import TensorSpec, serialize

HERE = Path(__file__).parent

text = "ü 漢字 \U0001f600 \u2028 \"\\\n\t\0"
values = [{"text": text}, {"text": text}, [0, -1, 2**64 - 1, 1.5, 1e300, True, None], "a string", [], {"deep": [[[{"x": 5}]]]}]
lines = [json.dumps(value, ensure_ascii=n == 0) for n, value in enumerate(values)]
(HERE / "unicode.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

ROWS = [
    ["name", "count", "note"],
    ["plain", "1", ""],
    ['a "quoted" name', "-2", "a, b"],
    ["two\nlines", "3.5", "three\r\nlines\n"],
    ["ü 漢字", "", " spaces "],
    ["", "5", "last"],
]
for name, options in {
    "excel.csv": {},
    "unix.csv": {"dialect": "unix"},
    "tabs.tsv": {"dialect": "excel-tab"},
    "single.csv": {"delimiter": ";", "quotechar": "'", "lineterminator": "\n"},
}.items():
    with open(HERE / name, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, **options).writerows(ROWS)

numbers = [0, 127, 128, 255, 256, 65536, 1 << 32, -1, -32, -33, -129, -32769, -(1 << 31) - 1]
values = [
    {"text": "ü 漢字 \U0001f600", "bytes": bytes(range(256))},
    numbers,
    1.5,
    msgpack.packb(0.25, use_single_float=True),
    msgpack.ExtType(5, b"abc"),
    None,
    [[True, False]] * 70,
    "x" * 300,
    {1: {2: {3: [[[[]]]]}}},
    b"",
    {},
    "last",
]
packed = [value if n == 3 else msgpack.packb(value) for n, value in enumerate(values)]
(HERE / "values.msgpack").write_bytes(b"".join(packed))

six = numpy.arange(6).reshape(2, 3)
arrays = {str(kind): six.astype(kind) for kind in ["u1", "i1", "i2", "u4", "i4", "u8"]}
arrays |= {"f16": six.astype("f2"), "f32": six.astype("f4"), "f64": six.astype("f8"), "i64": (six - 3).astype("i8")}
arrays["u16"] = numpy.array([0, 1, 2, 3, 4, 65535], "u2")
arrays["bool"] = numpy.array([True, False, True])
arrays["scalar ü"] = numpy.array(2.5, "f4")
arrays["empty"] = numpy.zeros((0, 3), "f4")


def pack(tensors):
    """Of names to a type, a shape and bytes; numpy alone has no bfloat16, nor floats of eight bits."""
    buffers = {name: numpy.frombuffer(data or b"\0", "u1") for name, (_, _, data) in tensors.items()}
    specs = {
        name: TensorSpec(dtype=dtype, shape=shape, data_ptr=buffers[name].ctypes.data, data_len=len(data))
        for name, (dtype, shape, data) in tensors.items()
    }
    return serialize(specs)


raw = {name: (own.dtype.name, own.shape, own.tobytes()) for name, own in arrays.items()}
raw["bf16"] = ("bfloat16", [2], b"\x80\x3f\x00\xc0")
(HERE / "types.safetensors").write_bytes(pack(raw))
narrow = {"narrow": ("float8_e4m3fn", [3], b"\x38\x40\x44"), "plain": ("float32", [1], b"\0\0\x80\x3f")}
(HERE / "float8.safetensors").write_bytes(pack(narrow))
