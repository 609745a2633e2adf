"""Makes the compressed files beside it, all of one text: by gzip, bz2 and lzma of Python 3.11, zstandard 0.25.0 and lz4 4.4.5."""

import bz2
import gzip
import lzma
import struct
from pathlib import Path

import lz4.frame
import zstandard

HERE = Path(__file__).parent
TEXT = "".join(f"line {n} of text, {n * n}\n" for n in range(120)).encode()
# Cut in the middle of a line.
PARTS = [TEXT[:1000], b"", TEXT[1000:]]


def save(name, *pieces):
    (HERE / name).write_bytes(b"".join(pieces))


def gz(data):
    return gzip.compress(data, mtime=0)


save("text.gz", gz(TEXT))
save("text-members.gz", *map(gz, PARTS))

SKIPPABLE = struct.pack("<II", 0x184D2A53, 9) + b"any thing"
plain = zstandard.ZstdCompressor(write_checksum=True)
save("text.zst", plain.compress(TEXT))
# Without lengths or checksums, as a stream writes them.
bare = zstandard.ZstdCompressor(write_content_size=False, write_checksum=False)
save("text-frames.zst", SKIPPABLE, bare.compress(PARTS[0]), SKIPPABLE, plain.compress(b""), plain.compress(PARTS[2]), SKIPPABLE)
words = [b"a word and another, %d" % (n % 97) for n in range(2000)]
dictionary = zstandard.train_dictionary(1024, words)
save("dictionary.zst", zstandard.ZstdCompressor(dict_data=dictionary).compress(TEXT))
# A stream, whose length is not known, has the whole window.
wide = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(window_log=28)).compressobj()
save("window.zst", wide.compress(TEXT), wide.flush())

save("text.lz4", lz4.frame.compress(TEXT, content_checksum=True))
linked = lz4.frame.compress(PARTS[0], block_checksum=True, block_size=lz4.frame.BLOCKSIZE_MAX1MB, store_size=False)
single = lz4.frame.compress(PARTS[2], block_linked=False, content_checksum=True, compression_level=9)
save("text-frames.lz4", linked, SKIPPABLE, lz4.frame.compress(b"", content_checksum=True), single)

save("text.bz2", bz2.compress(TEXT))
save("text-streams.bz2", *map(bz2.compress, PARTS))

save("text.xz", lzma.compress(TEXT))
filters = [{"id": lzma.FILTER_DELTA, "dist": 1}, {"id": lzma.FILTER_LZMA2, "preset": 0}]
save(
    "text-streams.xz",
    lzma.compress(PARTS[0], check=lzma.CHECK_SHA256),
    bytes(8),
    lzma.compress(b"", check=lzma.CHECK_CRC32),
    lzma.compress(PARTS[2], check=lzma.CHECK_CRC32, filters=filters),
    bytes(4),
)
