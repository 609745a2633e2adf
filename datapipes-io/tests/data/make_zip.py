"""Makes zip-*: archives by Python 3.11's zipfile, and by Info-ZIP's zip 3.0 (the same each time, but for the salt of the
encrypted one and the times of those from a stream)."""

import io
import os
import subprocess
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
TEXT = b"some text, and some text again. " * 40
FILES = {"folder/a.txt": b"one", "folder/empty.cls": b"", "long.txt": TEXT, "é/ü.bin": bytes(range(256))}


class Stream(io.RawIOBase):
    """Not seekable, so that sizes follow the data."""

    def __init__(self):
        self.data = b""

    def writable(self):
        return True

    def write(self, data):
        self.data += bytes(data)
        return len(data)


def python(to, force_zip64=False):
    with zipfile.ZipFile(to, "w") as archive:
        archive.writestr(zipfile.ZipInfo("folder/"), b"")
        for method, prefix in [(zipfile.ZIP_STORED, "stored/"), (zipfile.ZIP_DEFLATED, "deflated/")]:
            for name, data in FILES.items():
                info = zipfile.ZipInfo(prefix + name)
                info.compress_type = method
                with archive.open(info, "w", force_zip64=force_zip64) as member:
                    member.write(data)
        if not force_zip64:
            archive.comment = b"a comment"


python(HERE / "zip-python.zip")
python(HERE / "zip-python-zip64.zip", force_zip64=True)
for name, force in [("zip-python-stream.zip", False), ("zip-python-stream-zip64.zip", True)]:
    stream = Stream()
    python(stream, force)
    (HERE / name).write_bytes(stream.data)

for name, method in [("bzip2", zipfile.ZIP_BZIP2), ("lzma", zipfile.ZIP_LZMA)]:
    with zipfile.ZipFile(HERE / f"zip-python-{name}.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("first.txt"), b"first", zipfile.ZIP_STORED)
        archive.writestr(zipfile.ZipInfo("other.txt"), TEXT, method)
        archive.writestr(zipfile.ZipInfo("last.txt"), TEXT, zipfile.ZIP_DEFLATED)


def info_zip(name, *options, stdin=None):
    to = HERE / f"zip-info-{name}.zip"
    to.unlink(missing_ok=True)
    if stdin is None:
        subprocess.run(["zip", "-q", "-X", "-r", *options, to, "."], check=True)
    else:
        to.write_bytes(subprocess.run(["zip", "-q", "-X", *options, "-", "-"], input=stdin, capture_output=True, check=True).stdout)


os.environ |= {"TZ": "UTC", "LC_ALL": "C.UTF-8"}
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    for name, data in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(data)
    os.symlink("a.txt", "folder/link")
    for path in sorted(Path(".").rglob("*")):
        os.utime(path, (946684800, 946684800), follow_symlinks=False)
    info_zip("deflated", "-y")
    info_zip("stored", "-0", "-y")
    info_zip("encrypted", "-y", "-P", "secret")
    info_zip("stream", "-fz-", stdin=TEXT)
    info_zip("stream-zip64", stdin=TEXT)
    os.chdir(HERE)
