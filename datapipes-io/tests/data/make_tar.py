"""Makes the archives `tar-TOOL-FORMAT.tar.gz` beside it, by GNU tar 1.34 and bsdtar 3.6.2 (libarchive 3.6.2).

Both tools are taken from the path, and print their versions. Only zeros are lost by packing the archives by gzip.
"""

import gzip
import os
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
LONG = "d/" + "n" * 120 + "/" + "m" * 60 + ".txt"
FORMATS = {"tar": ["v7", "oldgnu", "gnu", "ustar", "posix"], "bsdtar": ["v7", "gnutar", "ustar", "pax"]}
OWNER = {
    "tar": ["--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"],
    "bsdtar": ["--uid=0", "--gid=0", "--numeric-owner"],
}
# Times of access and change are not the same twice.
POSIX = ["--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime"]


def files(folder):
    """What both tools pack; the names that a format has no room for come last, and are left out by it."""
    (folder / "d").mkdir()
    (folder / "d/a.txt").write_text("one")
    (folder / "d/b.bin").write_bytes(bytes(range(256)) * 3)
    (folder / "d/c.cls").write_bytes(b"")
    os.link(folder / "d/a.txt", folder / "d/hard.txt")
    os.symlink("a.txt", folder / "d/soft.txt")
    (folder / LONG).parent.mkdir()
    (folder / LONG).write_text("two")
    (folder / "d/ü-é.txt").write_text("three")
    for path in folder.rglob("*"):
        os.utime(path, (0, 0), follow_symlinks=False)
    return ["d/a.txt", "d/b.bin", "d/c.cls", "d/hard.txt", "d/soft.txt", LONG, "d/ü-é.txt"]


def spec(folder, names):
    """The same files as a list with their attributes: else bsdtar adds times that are not the same twice."""
    lines = ["#mtree"]
    for name in names:
        escaped = "".join(c if c.isascii() else "".join(f"\\{byte:03o}" for byte in c.encode()) for c in name)
        kind = "link link=a.txt" if name.endswith("soft.txt") else "file"
        lines.append(f"./{escaped} type={kind} mode=0644 uid=0 gid=0 time=0.0")
    (folder / "spec").write_text("\n".join(lines) + "\n")
    return "@spec"


def pack(name, data):
    (HERE / name).write_bytes(gzip.compress(data, mtime=0))


def run(tool, folder, *args):
    env = {**os.environ, "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    ran = subprocess.run([tool, *args], cwd=folder, capture_output=True, env=env)
    return ran.stdout


with tempfile.TemporaryDirectory() as folder:
    folder = Path(folder)
    names = files(folder)
    for tool, formats in FORMATS.items():
        print(subprocess.run([tool, "--version"], capture_output=True, text=True).stdout.splitlines()[0])
        for format in formats:
            more = OWNER[tool] + (POSIX if format == "posix" else [])
            what = [spec(folder, names)] if format == "pax" else names
            pack(f"tar-{tool}-{format}.tar.gz", run(tool, folder, "-c", f"--format={format}", *more, *what))

    # A file with a hole, as the tools condense it.
    with open(folder / "hole.bin", "wb") as hole:
        hole.seek(1 << 20)
        hole.write(b"end")
    (folder / "z.txt").write_text("behind")
    for path in ["hole.bin", "z.txt"]:
        os.utime(folder / path, (0, 0))
    for format in ["gnu", "posix"]:
        more = OWNER["tar"] + (POSIX if format == "posix" else [])
        # Later versions put the number of the process into a name.
        more += ["--sparse-version=0.0"] if format == "posix" else []
        data = run("tar", folder, "-c", "--sparse", f"--format={format}", *more, "hole.bin", "z.txt")
        pack(f"tar-sparse-{format}.tar.gz", data)
