"""Makes the MDS files beside it, by `MDSWriter` of mosaicml-streaming 0.13.0 (numpy 2.4.6, pillow 13.0.0, zstd 1.5).

Only the writer is wanted, so what the package imports for training and for clouds is replaced by nothing:
`pip install --no-deps mosaicml-streaming==0.13.0` and `pip install numpy pillow zstd xxhash typing_extensions` is enough.
`mds-values.json` says what is in the samples, for the test.
"""

import gzip
import importlib.abc
import importlib.machinery
import importlib.util
import json
import shutil
import sys
import types
from decimal import Decimal
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
from PIL import Image

HERE = Path(__file__).parent


class Nothing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds whatever nobody else has found."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__ = [], spec
        return module

    def exec_module(self, module):
        pass


def writer():
    root = importlib.util.find_spec("streaming").submodule_search_locations[0]
    for name, path in [("streaming", root), ("streaming.base", root + "/base")]:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [path]
    sys.meta_path.append(Nothing())
    from streaming.base.format.mds import MDSWriter

    return MDSWriter


MDSWriter = writer()
# The time in gzip's header is zero, so that the bytes are always the same.
gzip.time = types.SimpleNamespace(time=lambda: 0)


def write(folder, columns, samples, **options):
    out = HERE / folder
    shutil.rmtree(out, ignore_errors=True)
    with MDSWriter(columns=columns, out=str(out), **options) as mds:
        for sample in samples:
            mds.write(sample)


KINDS = {
    "bytes": "bytes", "str": "str", "int": "int",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "f16": "float16", "f32": "float32", "f64": "float64",
    "sint": "str_int", "sfloat": "str_float", "sdec": "str_decimal", "json": "json",
    "arr": "ndarray", "arr_t": "ndarray:float32", "arr_ts": "ndarray:int16:2,3",
    "pil": "pil", "png": "png", "jpeg": "jpeg", "jpegs": "jpeg_array", "pngs": "list[png]",
}


def png(n):
    return Image.frombytes("RGB", (2, 1), bytes([n, 1, 2, 3, 4, 5]))


def kinds(n):
    return {
        "bytes": bytes([n, 0, 255]), "str": f"naïve {n}", "int": -n,
        "u8": 255 - n, "u16": 65535, "u32": 4294967295, "u64": 18446744073709551615,
        "i8": -128 + n, "i16": -32768, "i32": -2147483648, "i64": -9223372036854775808,
        "f16": 0.333 * n, "f32": 0.1, "f64": 0.1,
        "sint": -123456789 * n, "sfloat": 1e-300, "sdec": Decimal("3.14159265358979323846264338327950288"),
        "json": {"n": n, "list": [1, 2.5, None, "x"]},
        "arr": np.arange(6 + n, dtype=np.float64).reshape(1, 6 + n),
        "arr_t": np.full((300, 1), n, np.float32) if n == 1 else np.ones((2, 2), np.float32),
        "arr_ts": np.arange(6, dtype=np.int16).reshape(2, 3) - n,
        "pil": png(n), "png": png(n), "jpeg": Image.new("L", (8, 8), n),
        "jpegs": [b"\xff\xd8first", b"\xff\xd8second!"], "pngs": [png(0), png(1)],
    }


write("mds-kinds", KINDS, [kinds(n) for n in range(3)])

ROWS = [{"id": n, "text": f"sample {n} " + "ab" * (n % 5)} for n in range(40)]
COLUMNS = {"id": "int", "text": "str"}
write("mds-raw", COLUMNS, ROWS, size_limit=600, hashes=["sha1", "xxh64"])
write("mds-zstd", COLUMNS, ROWS, size_limit=900, compression="zstd:7", hashes=["sha1", "xxh64"])
write("mds-gz", COLUMNS, ROWS, size_limit=900, compression="gz")
write("mds-pkl", {"a": "pkl"}, [{"a": [1]}])

json.dump(ROWS, open(HERE / "mds-values.json", "w"))
