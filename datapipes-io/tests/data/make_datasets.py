"""Makes `saved-dataset` and `cache-mapped.arrow` beside it, by the Hugging Face library datasets 5.2.0.

    pip install datasets==5.2.0 && python make_datasets.py

`saved-dataset` is a data set that was saved in two shards, `cache-mapped.arrow` the cache file of a `map` over it.
"""

import shutil
from pathlib import Path

from datasets import Dataset

HERE = Path(__file__).parent


def main():
    rows = range(7)
    data = Dataset.from_dict({
        "text": [None if n == 3 else f"text {n} ü" for n in rows],
        "number": list(rows),
        "list": [list(range(n % 3)) for n in rows],
    })
    folder = HERE / "saved-dataset"
    shutil.rmtree(folder, ignore_errors=True)
    data.save_to_disk(folder, num_shards=2)
    (HERE / "cache-mapped.arrow").unlink(missing_ok=True)
    data.map(lambda row: {"double": row["number"] * 2}, cache_file_name=str(HERE / "cache-mapped.arrow"), writer_batch_size=3)


if __name__ == "__main__":
    main()
