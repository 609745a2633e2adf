"""Writes the token stores of this folder with the tools that they belong to.

    pip install numpy datatrove humanize fsspec loguru …; pip install --no-deps megatron-core
    python make.py [MEGATRON T5]

MEGATRON and T5 are clones of Megatron-LM and of text-to-text-transfer-transformer, for fim.json and t5.json (which needs
tensorflow), which are not written without them: one module is in no package, and the other needs many. Of Megatron-LM the module that writes indexed data sets is loaded alone, without the modules that it imports for reading from
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


def fim(clone):
    """Documents that are filled in the middle, with the numbers that were drawn.

    A token is a letter, or two that are equal, so that a cut makes more tokens. Documents of single letters become shorter."""
    import numpy
    stub("megatron.core.datasets.gpt_dataset", GPTDataset=object, GPTDatasetConfig=object)
    stub("megatron.core.datasets.indexed_dataset", IndexedDataset=object)
    stub("megatron.core.datasets.utils", Split=object)
    original = module(None, "fim_dataset", clone / "megatron/training/datasets/fim_dataset.py")

    def text_to_ids(text):
        ids = []
        while text:
            pair = len(text) > 1 and text[0] == text[1]
            ids.append(ord(text[0]) + 1000 * pair)
            text = text[1 + pair:]
        return ids

    def ids_to_text(ids, **_):
        return "".join(chr(number % 1000) * (1 + number // 1000) for number in ids)

    tokenizer = types.SimpleNamespace(_tokenizer=types.SimpleNamespace(text_to_ids=text_to_ids, ids_to_text=ids_to_text))

    class Draws:
        def __init__(self, seed):
            self.random, self.drawn = numpy.random.RandomState(seed), []

        def binomial(self, count, probability):
            self.drawn.append(int(self.random.binomial(count, probability)))
            return self.drawn[-1]

        def randint(self, low, high, size):
            numbers = self.random.randint(low=low, high=high, size=size)
            self.drawn += numbers.tolist()
            return numbers

    cases = []
    for seed in range(60):
        random = numpy.random.RandomState(1000 + seed)
        text = "".join(random.choice(list("ab"), random.randint(1, 24)))
        document = [ord(letter) for letter in text] if seed % 3 == 0 else text_to_ids(text)
        no_prefix = "aa" if seed % 5 == 0 else None
        dataset = object.__new__(original.GPTFIMDataset)
        dataset.np_rng = Draws(seed)
        ids = dataset._permute(
            numpy.array(document), 0.9, 0.5, tokenizer, prefix_tok_id=1, middle_tok_id=2, suffix_tok_id=3, pad_tok_id=4,
            no_fim_prefix=no_prefix)
        cases.append(dict(document=document, no_prefix=no_prefix, draws=dataset.np_rng.drawn, ids=ids.tolist()))
    (HERE / "fim.json").write_text(json.dumps(cases) + "\n")


def t5(clone):
    """Inputs and targets of spans that T5 chose, and their numbers by the length of the document."""
    import numpy
    import tensorflow
    from unittest.mock import MagicMock
    configurable = lambda *given, **_: given[0] if given else lambda function: function
    stub("gin", configurable=configurable, REQUIRED=None)
    random = numpy.random.RandomState(3)

    def stateless_shuffle(values, seed):
        return tensorflow.constant(random.permutation(values.numpy()))

    sys.modules["babel"], sys.modules["seqio"] = MagicMock(), MagicMock(stateless_shuffle=stateless_shuffle)
    original = module(None, "preprocessors", clone / "t5/data/preprocessors.py")
    vocabulary = types.SimpleNamespace(vocab_size=32_100)
    seeds = [[0, 0], [0, 0]]

    def spans(mask):
        """Lengths of the stretches that stay, and of the spans."""
        ends = numpy.flatnonzero(numpy.diff(mask)) + 1
        lengths = numpy.diff(numpy.concatenate([[0], ends, [len(mask)]])).tolist()
        return lengths[::2], lengths[1::2]

    cases = []
    for length in (2, 3, 7, 10, 30, 70, 150):
        for density, span in ((0.15, 3.0), (0.5, 2.0)):
            mask = original.random_spans_noise_mask(length, density, seeds, span)
            ids = tensorflow.range(100, 100 + length)
            inputs = original.noise_span_to_unique_sentinel(ids, mask, vocabulary, seeds)
            targets = original.nonnoise_span_to_unique_sentinel(ids, mask, vocabulary, seeds)
            kept, noise = spans(mask.numpy())
            cases.append(dict(
                length=length, density=density, span=span, kept=kept, noise=noise, inputs=inputs.numpy().tolist(),
                targets=targets.numpy().tolist()))
    counts = []
    for length in range(2, 600):
        kept, noise = spans(original.random_spans_noise_mask(length, 0.15, seeds, 3.0).numpy())
        counts.append([sum(noise), len(noise)])
    (HERE / "t5.json").write_text(json.dumps(dict(cases=cases, counts=counts)) + "\n")


if sys.argv[1:]:
    fim(pathlib.Path(sys.argv[1]))
    t5(pathlib.Path(sys.argv[2]))
megatron()
datatrove()
gpt()
