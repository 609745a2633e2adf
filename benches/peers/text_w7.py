"""W7 by other loaders: python text_w7.py PEER FOLDER TOKENIZER WORKERS BATCH

Shards of compressed JSON lines, a byte-level BPE, rows of 2,048 tokens that are concatenated and cut, with labels, positions and
numbers of documents, in batches. Prints the seconds for every document once, without start-up, and the tokens that came.

  encode   the tokenizer alone, by its batch call on WORKERS threads, texts in memory
  hf       datasets, streaming, with batched maps
  torch    DataLoader of torch over an IterableDataset, WORKERS processes
  nodes    torchdata.nodes, WORKERS threads that tokenize
  grain    IterDataset with ConcatThenSplit, in WORKERS processes
"""
import glob
import gzip
import json
import os
import sys
import time

peer, folder, tokenizer_json = sys.argv[1:4]
workers, size = map(int, sys.argv[4:])
os.environ["RAYON_NUM_THREADS"] = str(max(workers, 1))
# In processes beside each other each has one thread.
os.environ["TOKENIZERS_PARALLELISM"] = "false" if peer in ("torch", "nodes", "grain") and workers else "true"
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")

import numpy as np
from tokenizers import Tokenizer

LENGTH = 2048
FIELDS = ("ids", "labels", "positions", "document")
paths = sorted(glob.glob(os.path.join(folder, "docs-*.jsonl.gz")))
tokenizer = Tokenizer.from_file(tokenizer_json)
end = tokenizer.token_to_id("<|endoftext|>")


def texts(path):
    """The texts of a shard, 256 at a time."""
    some = []
    with gzip.open(path, "rb") as lines:
        for line in lines:
            some.append(json.loads(line)["text"])
            if len(some) == 256:
                yield some
                some = []
    if some:
        yield some


def encoded(some):
    """The tokens of each text, and the token of its end."""
    return [np.array(one.ids + [end], np.int64) for one in tokenizer.encode_batch_fast(some)]


def fields(ids, starts, filled):
    """Whole rows of concatenated documents, of which `starts` marks the first tokens and `filled` are no padding."""
    ids, starts = ids.reshape(-1, LENGTH), starts.reshape(-1, LENGTH)
    starts[:, 0] = True
    document = np.cumsum(starts, axis=1, dtype=np.int32)
    place = np.arange(LENGTH, dtype=np.int32)
    positions = place - np.maximum.accumulate(np.where(starts, place, 0), axis=1)
    labels = np.full(ids.shape, -100, np.int64)
    same = ~starts[:, 1:]
    labels[:, :-1][same] = ids[:, 1:][same]
    document.reshape(-1)[filled:] = 0
    labels.reshape(-1)[max(filled - 1, 0):] = -100
    return ids, labels, positions, document


def rows(documents):
    """Rows of the tokens of documents, some at a time."""
    ids, starts, have = [], [], 0

    def cut(pad):
        tokens, first = np.concatenate(ids), np.concatenate(starts)
        whole = len(tokens) if pad else len(tokens) // LENGTH * LENGTH
        fill = -whole % LENGTH
        made = fields(np.pad(tokens[:whole], (0, fill)), np.pad(first[:whole], (0, fill)), whole)
        ids[:], starts[:] = [tokens[whole:]], [first[whole:]]
        yield from (dict(zip(FIELDS, row)) for row in zip(*made))
        return len(tokens) - whole

    for document in documents:
        first = np.zeros(len(document), bool)
        first[0] = True
        ids.append(document)
        starts.append(first)
        have += len(document)
        if have >= 16 * LENGTH:
            have = yield from cut(False)
    if have:
        yield from cut(True)


def of_shards(shards):
    return rows(document for path in shards for some in texts(path) for document in encoded(some))


def hf():
    from datasets import load_dataset

    data = load_dataset("json", data_files=paths, split="train", streaming=True)
    names = list(next(iter(data)))
    # As `group_texts` of the examples of transformers; what is left of a thousand documents is padded.
    data = data.map(lambda some: {"tokens": encoded(some["text"])}, batched=True, remove_columns=names)

    def packed(some):
        made = list(rows(np.array(one) for one in some["tokens"]))
        return {name: [row[name] for row in made] for name in FIELDS}

    data = data.map(packed, batched=True, remove_columns=["tokens"]).with_format("numpy").batch(size)
    return lambda: iter(data)


def torch():
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    torch.set_num_threads(1)

    class Documents(IterableDataset):
        def __iter__(self):
            worker = get_worker_info()
            return of_shards(paths[worker.id :: worker.num_workers] if worker else paths)

    data = DataLoader(Documents(), batch_size=size, num_workers=workers)
    return lambda: ({name: field.numpy() for name, field in batch.items()} for batch in data)


def nodes():
    import torch
    from torchdata.nodes import BaseNode, Batcher, IterableWrapper, Loader, Mapper, ParallelMapper, Prefetcher

    torch.set_num_threads(1)

    class Lists:
        def __iter__(self):
            return (some for path in paths for some in texts(path))

    class Packed(BaseNode):
        """It has no node that packs: one as its documents advise."""

        def __init__(self, source):
            super().__init__()
            self.source = source

        def reset(self, state=None):
            super().reset(state)
            self.source.reset()
            self.rows = rows(one for some in self.source for one in some)

        def next(self):
            return next(self.rows)

        def get_state(self):
            return {}

    node = ParallelMapper(IterableWrapper(Lists()), encoded, num_workers=workers, method="thread")
    node = Mapper(Batcher(Packed(node), size, drop_last=False), torch.utils.data.default_collate)
    data = Loader(Prefetcher(node, 2))
    return lambda: ({name: field.numpy() for name, field in batch.items()} for batch in data)


def grain():
    import grain
    from absl import flags

    flags.FLAGS(["peer"])

    class Documents(grain.IterDataset):
        def __init__(self, path):
            super().__init__()
            self.path = path

        def __iter__(self):
            return Iterator(self.path)

    class Iterator(grain.DatasetIterator):
        def __init__(self, path):
            super().__init__()
            self.documents = ({"ids": one} for some in texts(path) for one in encoded(some))

        def __next__(self):
            return next(self.documents)

        def get_state(self):
            return {}

        def set_state(self, state):
            pass

    data = grain.experimental.InterleaveIterDataset(grain.MapDataset.source(paths).map(Documents), cycle_length=1)
    data = grain.experimental.ConcatThenSplitIterDataset(data, length_struct={"ids": LENGTH})

    def labelled(row):
        ids, document = row["ids"], row["ids_segment_ids"]
        labels = np.full(ids.shape, -100, np.int64)
        same = (document[1:] == document[:-1]) & (document[1:] > 0)
        labels[:-1][same] = ids[1:][same]
        return dict(ids=ids, labels=labels, positions=row["ids_positions"], document=document)

    data = data.map(labelled).batch(size)
    if workers:
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
        data = data.mp_prefetch(options)
    return lambda: iter(data)


def main():
    if peer == "encode":
        all_texts = [some for path in paths for some in texts(path)]
        begun = time.perf_counter()
        tokens = sum(len(one.ids) + 1 for some in all_texts for one in tokenizer.encode_batch_fast(some))
    else:
        batches = {"hf": hf, "torch": torch, "nodes": nodes, "grain": grain}[peer]()
        begun, tokens = time.perf_counter(), 0
        for batch in batches():
            document = np.asarray(batch["document"])
            assert document.shape[1:] == (LENGTH,) and all(np.shape(batch[name]) == document.shape for name in FIELDS)
            tokens += int((document > 0).sum())
    print(time.perf_counter() - begun, tokens)


# Processes of Grain import this file.
if __name__ == "__main__":
    main()
