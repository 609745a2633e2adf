"""Makes a TFRecord file and its index, by the package tfrecord 1.14.6, which is independent of TensorFlow."""

from pathlib import Path

import tfrecord
from tfrecord.tools.tfrecord2idx import create_index

HERE = Path(__file__).parent

path = str(HERE / "package.tfrecord")
writer = tfrecord.TFRecordWriter(path)
for n in range(3):
    # One feature an example, since this package does not order them.
    writer.write({"label": ([n, n + 1], "int")})
writer.close()
create_index(path, str(HERE / "package.tfindex"))
