"""Writes the token stores of this folder with the tools that they belong to.

    pip install numpy datatrove humanize fsspec loguru …; pip install --no-deps megatron-core
    python make.py

Of Megatron-LM the module that writes indexed data sets is loaded alone, without the modules that it imports for reading from
object stores; of torch it needs the type of an argument.
"""
import importlib.util
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


megatron()
datatrove()
