"""Rows of a Parquet file by pyarrow: python parquet.py rows|filter FILE COUNT

Prints the seconds for COUNT random rows in batches of 32, or for the COUNT rows that match a filter, without start-up.
"""
import random
import sys
import time

import pyarrow.dataset as ds

what, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
BATCH = 32
data = ds.dataset(path)


def rows():
    places = random.sample(range(total), count)
    some = (sorted(places[at:at + BATCH]) for at in range(0, count, BATCH))
    return sum(data.take(batch, columns=["text"]).num_rows for batch in some)


def matching():
    return data.to_table(columns=["text"], filter=(ds.field("lang") == "en") & (ds.field("score") > 0.8)).num_rows


total = data.count_rows()
run = {"rows": rows, "filter": matching}[what]
assert run() == count
begun = time.perf_counter()
assert run() == count
print(time.perf_counter() - begun)
