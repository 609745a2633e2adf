"""Makes the TFRecord files beside it, by TensorFlow 2.21.0 (`pip install tensorflow-cpu==2.21.0`).

Maps are written in the order of their keys, so that the bytes are always the same.
"""

from pathlib import Path

import tensorflow as tf

HERE = Path(__file__).parent


def feature(**kind):
    return tf.train.Feature(**kind)


def ints(*values):
    return feature(int64_list=tf.train.Int64List(value=values))


def floats(*values):
    return feature(float_list=tf.train.FloatList(value=values))


def texts(*values):
    return feature(bytes_list=tf.train.BytesList(value=values))


def examples():
    for n in range(4):
        yield tf.train.Example(features=tf.train.Features(feature={
            "image": texts(bytes(range(256)) * n),
            "label": ints(n),
            "ids": ints(0, 1, -1, 127, 128, 2**63 - 1, -(2**63)),
            "box": floats(0.0, 0.1, -1.5, float("inf"), 1e-45),
            "words": texts("größe".encode(), b"", b"\xff"),
            "none": feature(),
            "no ints": ints(),
            "no floats": floats(),
            "no bytes": texts(),
        })).SerializeToString(deterministic=True)
    yield b""


def write(name, records, compression=None):
    path = str(HERE / name)
    with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions(compression_type=compression)) as out:
        for record in records:
            out.write(record)


write("tensorflow.tfrecord", examples())
write("tensorflow.tfrecord.gz", examples(), "GZIP")
write("tensorflow.tfrecord.zlib", examples(), "ZLIB")
write("empty.tfrecord", [])

lists = tf.train.FeatureLists(feature_list={
    "frames": tf.train.FeatureList(feature=[texts(b"one"), texts(b"two", b"three")]),
    "none": tf.train.FeatureList(),
    "times": tf.train.FeatureList(feature=[floats(0.5), floats(1.5), floats(2.5)]),
})
context = tf.train.Features(feature={"id": ints(7), "name": texts(b"walk")})
sequence = tf.train.SequenceExample(context=context, feature_lists=lists)
write("sequence.tfrecord", [sequence.SerializeToString(deterministic=True)])
