"""A recording, decoded, resampled, or made to Whisper's features.

audio.py decode|resample|log_mel FILE COUNT: prints the seconds of COUNT times, on one thread, after one that warms up.
"""
import sys
import time

what, file, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
if what == "decode":
    import soundfile

    def run():
        soundfile.read(file, dtype="float32")
else:
    import numpy
    import soundfile
    import torch

    torch.set_num_threads(1)
    samples, rate = soundfile.read(file, dtype="float32")
    if what == "resample":
        import torchaudio
        samples = torch.from_numpy(samples)
        change = torchaudio.transforms.Resample(rate, 16_000)

        def run():
            change(samples)
    else:
        from transformers import WhisperFeatureExtractor
        extractor = WhisperFeatureExtractor(feature_size=80)
        samples = numpy.interp(numpy.arange(30 * 16_000) / 16_000, numpy.arange(len(samples)) / rate, samples)

        def run():
            extractor(samples, sampling_rate=16_000, return_tensors="np")

run()
begun = time.perf_counter()
for _ in range(count):
    run()
print(time.perf_counter() - begun)
