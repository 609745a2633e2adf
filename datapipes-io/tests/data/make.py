"""Makes the files beside it: archives by Python's tarfile, and names by WebDataset's regular expressions."""

import gzip
import io
import random
import re
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
LONG = "folder-" + "x" * 120 + "/" + "y" * 90 + ".txt"


def archive(format, mode="w:"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=format) as tar:

        def add(name, data, **more):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in more.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))

        add("folder", b"", type=tarfile.DIRTYPE)
        add("folder/a.txt", b"one")
        add("folder/empty.cls", b"")
        add("link", b"", type=tarfile.SYMTYPE, linkname="folder/a.txt")
        add("hard", b"", type=tarfile.LNKTYPE, linkname="folder/a.txt")
        add("pipe", b"", type=tarfile.FIFOTYPE)
        if format != tarfile.USTAR_FORMAT:
            add(LONG, b"two")
            add("é/ü.txt", b"three")
        add("last.bin", bytes(range(256)) * 3)
    return out.getvalue()


def pack(data):
    return gzip.compress(data, mtime=0)


for name, format in [
    ("ustar", tarfile.USTAR_FORMAT),
    ("gnu", tarfile.GNU_FORMAT),
    ("pax", tarfile.PAX_FORMAT),
]:
    # Only zeros are lost by packing the archives, and they stay small in the repository.
    (HERE / f"python-{name}.tar.gz").write_bytes(pack(archive(format)))

# From webdataset/tariterators.py.
META = re.compile("__[^/]*__($|/)")
SPLIT = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")


def is_meta(name):
    return ("/" not in name and name.startswith("__") and name.endswith("__")) or META.match(name) is not None


rng = random.Random(7)
names = {"__", "___", "____", "__\n", "___\n", "____\n", "__x__\n", "a\nb/c.d", "a/b\nc/d.e", "a.b\nc/d.e", "a\n.b/c.d"}
while len(names) < 400:
    names.add("".join(rng.choice("ab._/_./\n") for _ in range(rng.randint(0, 9))))
while len(names) < 450:
    names.add("__" + "".join(rng.choice("a_/._") for _ in range(rng.randint(0, 7))))
lines = []
for name in sorted(names):
    match = SPLIT.match(name)
    key, suffix = match.groups() if match else ("-", "-")
    fields = [name, "skip" if is_meta(name) else "keep", key, suffix]
    lines.append("\t".join(field.replace("\n", "\\n") for field in fields))
(HERE / "names.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
