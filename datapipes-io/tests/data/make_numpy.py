"""Makes numpy-*: arrays by NumPy 2.4.6, and what is in them as text. Run it with that version installed."""

import io
import warnings
import zipfile
from pathlib import Path

import numpy
from numpy.lib import format as npy_format

HERE = Path(__file__).parent
TYPES = ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
warnings.simplefilter("ignore")


def values(kind, shape):
    count = int(numpy.prod(shape))
    numbers = numpy.arange(count) * 37 - 11
    if kind == "b1":
        numbers = numbers % 3 == 0
    elif kind[0] == "u":
        numbers = numpy.abs(numbers)
    elif kind[0] == "f":
        numbers = numbers / 4
    elif kind[0] == "c":
        numbers = numbers / 4 - 1j * numpy.arange(count)
    return numbers.reshape(shape).astype(kind)


def save(array, version=None):
    out = io.BytesIO()
    if version is None:
        numpy.save(out, array)
    else:
        npy_format.write_array(out, array, version=version)
    return out.getvalue()


readable, refused = {}, {}
for kind in TYPES:
    for order in "<>":
        for fortran in [False, True]:
            array = values(kind, (2, 3)).astype(numpy.dtype(kind).newbyteorder(order))
            array = numpy.asfortranarray(array) if fortran else array
            name = f"{kind}-{'big' if order == '>' else 'little'}-{'fortran' if fortran else 'c'}.npy"
            readable[name] = (array, None)
for version in [(1, 0), (2, 0), (3, 0)]:
    readable[f"version{version[0]}.npy"] = (values("i4", (3, 2)), version)
readable["scalar.npy"] = (values("f8", ()), None)
readable["empty.npy"] = (values("f4", (0,)), None)
readable["empty-axis.npy"] = (numpy.asfortranarray(values("f4", (3, 0, 2))), None)
readable["long.npy"] = (values("u2", (1234,)), None)
readable["axes5-fortran.npy"] = (numpy.asfortranarray(values("i2", (2, 3, 1, 4, 5))), None)
readable["one-axis-fortran.npy"] = (numpy.asfortranarray(values(">i4", (7, 1))), None)
# Neither order: NumPy writes C order.
readable["strided.npy"] = (values("f4", (6, 8))[::2, ::3], None)

refused["object.npy"] = numpy.array([1, "a", None], dtype=object)
refused["structured.npy"] = numpy.zeros(2, dtype=[("a", "<f4"), ("ü", "<i2", (3,))])
refused["structured-object.npy"] = numpy.array([(1, None)], dtype=[("a", "<f4"), ("b", "O")])
refused["datetime.npy"] = numpy.array(["2026-01-01"], dtype="M8[s]")
refused["timedelta.npy"] = numpy.array([5], dtype="m8[ns]")
refused["bytes.npy"] = numpy.array([b"ab", b"c"])
refused["text.npy"] = numpy.array(["ab", "ü"])
refused["void.npy"] = numpy.zeros(3, dtype="V5")
refused["longdouble.npy"] = numpy.zeros(1, dtype=numpy.longdouble)  # any other has bytes that are not set
refused["longcomplex.npy"] = numpy.zeros(1, dtype=numpy.clongdouble)

lines = []
with zipfile.ZipFile(HERE / "numpy-files.zip", "w") as archive:

    def add(name, data):
        archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)

    for name, (array, version) in readable.items():
        add(name, save(array, version))
        little = array.astype(array.dtype.newbyteorder("<"))
        fields = [
            name,
            array.dtype.str,
            array.dtype.name,
            " ".join(map(str, array.shape)),
            str(not array.flags.c_contiguous and array.flags.f_contiguous),
            little.tobytes(order="C").hex(),
        ]
        lines.append("\t".join(fields))
    for name, array in refused.items():
        add(name, save(array))
        lines.append(f"{name}\trefused")
(HERE / "numpy-files.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")

some = {
    "images": values("u1", (4, 5, 3)),
    "weights": values("f4", (6, 7)),
    "turned": numpy.asfortranarray(values(">f8", (3, 4))),
    "label": values("i8", ()),
    "none": values("f4", (0,)),
    "ünïcode/name.x": values("b1", (9,)),
}
numpy.savez(HERE / "numpy-savez.npz", **some)
numpy.savez_compressed(HERE / "numpy-savez-compressed.npz", **some)
numpy.savez(HERE / "numpy-savez-object.npz", good=values("f4", (2,)), bad=refused["object.npy"])
(HERE / "numpy-f4.npy").write_bytes(save(values("f4", (2, 3))))
