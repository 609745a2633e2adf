"""Writes the token stores of this folder with the tools that they belong to.

    pip install numpy datatrove humanize fsspec loguru …; pip install --no-deps megatron-core
    python make.py

Of Megatron-LM the module that writes indexed data sets is loaded alone, without the modules that it imports for reading from
object stores; of torch it needs the type of an argument. The order of samples (gpt.json) is that of its `GPTDataset` and the
compiled helpers, over token ids that count up, so that ids tell where they are from.
"""
import enum
import importlib.util
import json
import pathlib
import sys
import types

HERE = pathlib.Path(__file__).parent
DOCUMENTS = [[5, 6, 7], [], [65535, 1], list(range(100, 120)), [9]]


def stub(name, **names):
    sys.modules[name] = module = types.ModuleType(name)
    module.__dict__.update(names)


def megatron():
    import numpy
    root = pathlib.Path(importlib.util.find_spec("megatron").submodule_search_locations[0])

    class Tensor(numpy.ndarray):
        def numpy(self):
            return self

    data = types.SimpleNamespace(data=types.SimpleNamespace(Dataset=object))
    stub("torch", Tensor=Tensor, from_numpy=lambda array: array.view(Tensor), utils=data)
    stub("megatron.core")
    stub("megatron.core.datasets")
    any_name = {name: None for name in (
        "ObjectStorageConfig", "S3Config", "cache_index_file", "dataset_exists", "get_index_cache_path",
        "get_object_storage_access", "is_object_storage_path", "parse_s3_path", "create_s3_client")}
    stub("megatron.core.datasets.object_storage_utils", **any_name)
    stub("megatron.core.datasets.utils_s3", **any_name)
    stub("megatron.core.msc_utils", MultiStorageClientFeature=types.SimpleNamespace(is_enabled=lambda: False))
    stub("megatron.core.utils", log_single_rank=lambda *_: None)
    spec = importlib.util.spec_from_file_location("indexed", root / "core/datasets/indexed_dataset.py")
    indexed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(indexed)

    def tensor(ids):
        return numpy.array(ids, numpy.int64).view(Tensor)

    builder = indexed.IndexedDatasetBuilder(str(HERE / "megatron.bin"), numpy.uint16)
    for ids in DOCUMENTS:
        builder.add_document(tensor(ids), [len(ids)])
    builder.finalize(str(HERE / "megatron.idx"))
    builder = indexed.IndexedDatasetBuilder(str(HERE / "megatron-i32.bin"), numpy.int32)
    builder.add_document(tensor([70000, 1]), [2])
    builder.add_document(tensor([2]), [1])
    builder.add_document(tensor([3, 4, 5, 6]), [1, 3])
    builder.finalize(str(HERE / "megatron-i32.idx"))


def datatrove():
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile
    for name, size in (("datatrove.ds", 2), ("datatrove-u32.ds", 4)):
        file = TokenizedFile(str(HERE), name, tokenizer_name_or_path="gpt2", save_final_metadata=True, token_size=size)
        for ids in DOCUMENTS:
            file.write(ids, None)
        file.close()
    file = TokenizedFile(
        str(HERE), "datatrove-loss.ds", tokenizer_name_or_path="gpt2", save_final_metadata=True, save_loss_metadata=True)
    for ids in DOCUMENTS:
        file.write(ids, [at % 3 != 1 for at in range(len(ids))])
    file.close()


def module(root, name, file):
    spec = importlib.util.spec_from_file_location(name, file if file.is_absolute() else next(root.glob(str(file))))
    sys.modules[name] = loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def gpt():
    import numpy
    root = pathlib.Path(importlib.util.find_spec("megatron").submodule_search_locations[0]) / "core/datasets"

    class Split(enum.Enum):
        train = 0
        valid = 1

    stub("torch", Tensor=numpy.ndarray)
    stub("megatron.core")
    stub("megatron.core.utils", log_single_rank=lambda *_: None)
    stub("megatron.core.tokenizers", MegatronTokenizerBase=object)
    stub("megatron.core.datasets.blended_megatron_dataset_config", BlendedMegatronDatasetConfig=object)
    stub("megatron.core.datasets.indexed_dataset", IndexedDataset=object)
    stub("megatron.core.datasets.megatron_dataset", MegatronDataset=object)
    stub("megatron.core.datasets.object_storage_utils", ObjectStorageConfig=object, is_object_storage_path=None)
    stub("megatron.core.datasets.utils", Split=Split)
    module(root, "megatron.core.datasets.helpers_cpp", pathlib.Path("helpers_cpp*.so"))
    stub("megatron.core.datasets", helpers=module(root, "megatron.core.datasets.helpers", root / "helpers.py"))
    original = module(root, "gpt_dataset", root / "gpt_dataset.py")

    class Sequences:
        """Sequences of ids that count up, over all of them."""

        def __init__(self, lengths):
            self.sequence_lengths = numpy.array(lengths, numpy.int32)
            self.ends = numpy.cumsum(self.sequence_lengths)

        def get(self, number, offset=0, length=None):
            end = int(self.ends[number])
            begin = end - int(self.sequence_lengths[number]) + offset
            return numpy.arange(begin, end if length is None else min(end, begin + int(length)))

    class Dataset(original.GPTDataset):
        def __init__(self, lengths, sequences, length, samples, seed):
            self.dataset = Sequences(lengths)
            self.indices = numpy.arange(*sequences, dtype=numpy.int32)
            self.num_samples = samples
            self.index_split = Split.train
            self.config = types.SimpleNamespace(
                sequence_length=length, random_seed=seed, add_extra_token_to_sequence=True, path_to_cache=None, mock=True,
                defer_npy_index_mmap=False)
            self.document_index, self.sample_index, self.shuffle_index = self._build_document_sample_shuffle_indices()

        def ids(self):
            count = len(self.sample_index) - 1
            return [self._query_document_sample_shuffle_indices(number)[0].tolist() for number in range(count)]

    mixed = [3, 0, 2, 20, 1, 7, 0, 5, 11, 1]
    cases = [
        (mixed, (0, 10), 4, None, 1234),      # one epoch
        (mixed, (0, 10), 4, 12, 1234),        # one, with more samples than are asked for
        (mixed, (0, 10), 4, 13, 1),           # a few samples of the last epoch, kept apart
        (mixed, (0, 10), 4, 22, 1),           # all but a few of the last epoch, shuffled with the first
        (mixed, (0, 10), 5, 31, 4294967295),  # four epochs, the last of them apart
        (mixed, (0, 10), 1, 60, 0),
        (mixed, (3, 8), 6, 7, 42),            # a part of the sequences
        ([1, 1, 1], (0, 3), 8, 2, 7),         # a sample spans epochs
        ([40], (0, 1), 8, 9, 7),              # one sequence
        ([5], (0, 1), 8, None, 7),            # no sample
    ]
    orders = []
    for lengths, sequences, length, samples, seed in cases:
        ids = Dataset(lengths, sequences, length, samples, seed).ids()
        orders.append(dict(lengths=lengths, sequences=sequences, length=length, samples=samples, seed=seed, ids=ids))
    # Shuffles of numpy alone: small ones by their numbers, a large one by a sum over places and numbers.
    shuffles = []
    for seed, count in ((0, 1), (0, 2), (1234, 10), (4294967295, 100)):
        numbers = numpy.arange(count)
        numpy.random.RandomState(seed).shuffle(numbers)
        shuffles.append(dict(seed=seed, numbers=numbers.tolist()))
    numbers = numpy.arange(100_000)
    numpy.random.RandomState(5).shuffle(numbers)
    large = dict(seed=5, count=len(numbers), sum=int(numpy.sum(numbers * numpy.arange(len(numbers)))))
    (HERE / "gpt.json").write_text(json.dumps(dict(orders=orders, shuffles=shuffles, large=large)) + "\n")


megatron()
datatrove()
gpt()
