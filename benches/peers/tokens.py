"""Random windows of 2,048 tokens of a Megatron store, in batches of 8: python tokens.py PEER PREFIX COUNT

Prints the seconds for COUNT tokens of 16 bits, without start-up.

  ids      a mapped file of NumPy's, as Megatron's readers have: each window copied into a batch
  fields   the same, with labels, positions and numbers of documents of each batch
  litdata  TokensLoader of LitData, shuffled, ids alone; its chunks are made beside the store, once
"""
import os
import sys
import time

import numpy as np

peer, prefix, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
LENGTH, BATCH = 2048, 8


def starts():
    """The place of the first token of each document, by the index."""
    with open(prefix + ".idx", "rb") as index:
        head = index.read(34)
        assert head[:9] == b"MMIDIDX\0\0" and head[17] == 8, "no index of 16 bits"
        sequences = int.from_bytes(head[18:26], "little")
        index.seek(4 * sequences, os.SEEK_CUR)
        return np.fromfile(index, np.int64, sequences) // 2


def windows():
    """Batches of windows, in another order each time, with their places."""
    tokens = np.memmap(prefix + ".bin", np.uint16, "r")
    order = np.random.default_rng().permutation(len(tokens) // LENGTH)
    for at in range(0, len(order) - len(order) % BATCH, BATCH):
        places = order[at:at + BATCH] * LENGTH
        yield np.stack([tokens[place:place + LENGTH] for place in places]), places


def ids():
    return lambda: (ids for ids, _ in windows())


def fields():
    begins = starts()
    place = np.arange(LENGTH, dtype=np.int32)

    def of_batch(ids, places):
        first = np.zeros(ids.shape, bool)
        for row, at in enumerate(places):
            some = begins[np.searchsorted(begins, at):np.searchsorted(begins, at + LENGTH)]
            first[row, some - at] = True
        first[:, 0] = True
        document = np.cumsum(first, axis=1, dtype=np.int32)
        positions = place - np.maximum.accumulate(np.where(first, place, 0), axis=1)
        ids = ids.astype(np.int64)
        labels = np.full(ids.shape, -100, np.int64)
        np.copyto(labels[:, :-1], ids[:, 1:], where=~first[:, 1:])
        return ids, labels, positions, document

    return lambda: (of_batch(*batch)[0] for batch in windows())


def pieces(_):
    import torch

    tokens = np.memmap(prefix + ".bin", np.uint16, "r")
    for at in range(0, len(tokens), 8 * LENGTH):
        yield torch.from_numpy(np.array(tokens[at:at + 8 * LENGTH])).to(torch.uint16)


def litdata():
    import litdata
    import torch
    from litdata.streaming.item_loader import TokensLoader

    torch.set_num_threads(1)
    folder = prefix + ".litdata"
    if not os.path.exists(folder):
        litdata.optimize(fn=pieces, inputs=[0], output_dir=folder, chunk_bytes="8MB", num_workers=1,
                         item_loader=TokensLoader(block_size=LENGTH), verbose=False)
    data = litdata.StreamingDataset(folder, item_loader=TokensLoader(block_size=LENGTH), shuffle=True, drop_last=False)

    def stacked(some):
        return torch.stack([window.to(torch.int64) for window in some])

    return lambda: litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=0, collate_fn=stacked)


if __name__ == "__main__":
    batches = {"ids": ids, "fields": fields, "litdata": litdata}[peer]()
    begun = time.perf_counter()
    seen = sum(len(batch) * LENGTH for batch in batches())
    seconds = time.perf_counter() - begun
    assert abs(seen - count) < count / 50, f"{seen} tokens of {count}"
    print(seconds * count / seen)
