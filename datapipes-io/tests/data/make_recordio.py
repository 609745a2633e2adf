"""Makes the RecordIO files beside it, by mxnet 1.9.1 (numpy 1.23.5): its own `MXIndexedRecordIO` and `pack`."""

import struct
from pathlib import Path

import numpy as np
from mxnet import recordio

HERE = Path(__file__).parent
MAGIC = struct.pack("<I", 0xCED7230A)

record = recordio.MXIndexedRecordIO(str(HERE / "mxnet.idx"), str(HERE / "mxnet.rec"), "w")
payloads = [
    b"", b"a", b"ab", b"abc", b"abcd",
    MAGIC, MAGIC * 3, b"1234" + MAGIC + b"5678", b"12" + MAGIC + b"34", b"1234" + MAGIC, MAGIC + b"x",
    bytes(range(256)),
]
for key, payload in enumerate(payloads):
    record.write_idx(key, payload)
record.close()

images = recordio.MXIndexedRecordIO(str(HERE / "images.idx"), str(HERE / "images.rec"), "w")
images.write_idx(10, recordio.pack(recordio.IRHeader(0, 3.0, 10, 0), b"jpeg bytes"))
images.write_idx(20, recordio.pack(recordio.IRHeader(0, np.array([1.5, -2, 7], np.float32), 20, 1), b"more"))
images.write_idx(30, recordio.pack(recordio.IRHeader(0, -1, 2**63, 0), b""))
images.close()
