"""Single files by PyTorch: median seconds of an epoch that reads all files below a folder in batches, imports not counted."""
import glob
import statistics
import sys
import time

import torch


class Files(torch.utils.data.Dataset):
    def __init__(self, root):
        self.paths = sorted(glob.glob(root + "/**/*.bin", recursive=True))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with open(self.paths[index], "rb") as file:
            return file.read()


files = Files(sys.argv[1])
times = []
for _ in range(4):
    t = time.perf_counter()
    for batch in torch.utils.data.DataLoader(files, batch_size=int(sys.argv[3]), num_workers=int(sys.argv[2]), collate_fn=list):
        pass
    times.append(time.perf_counter() - t)
print(statistics.median(times[1:]))
