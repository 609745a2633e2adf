"""Makes the files of this folder: `python make.py`, with ffmpeg, flac, lame, oggenc and sox, and the Python packages numpy,
soundfile, librosa, transformers, torch and torchaudio. The tests do not need it."""

import subprocess

import numpy as np
import soundfile

RATE, FRAMES = 22_050, 6_615
rng = np.random.default_rng(7)
t = np.arange(FRAMES) / RATE
sweep = 0.5 * np.sin(2 * np.pi * (150 * t + 4_000 * t**2))
left = sweep + 0.01 * rng.standard_normal(FRAMES)
right = 0.3 * np.sin(2 * np.pi * 440 * t) + 0.01 * rng.standard_normal(FRAMES)
stereo = np.stack([left, right], 1)


def run(*args):
    subprocess.run(args, check=True, capture_output=True)


soundfile.write("s16.wav", stereo, RATE, subtype="PCM_16")
for name, subtype in [("u8.wav", "PCM_U8"), ("s24.wav", "PCM_24"), ("s32.wav", "PCM_32"), ("f32.wav", "FLOAT"),
                      ("f64.wav", "DOUBLE"), ("alaw.wav", "ALAW"), ("ulaw.wav", "ULAW")]:
    soundfile.write(name, soundfile.read("s16.wav")[0][:2000], RATE, subtype=subtype)
run("sox", "s16.wav", "s16.aiff")
run("flac", "-f", "-s", "s16.wav", "-o", "s16.flac")
run("lame", "--quiet", "-b", "128", "s16.wav", "lame.mp3")
run("ffmpeg", "-y", "-i", "s16.wav", "-write_xing", "0", "-b:a", "64k", "-map_metadata", "-1", "bare.mp3")
run("oggenc", "-Q", "-q", "6", "s16.wav", "-o", "vorbis.ogg")
run("ffmpeg", "-y", "-i", "s16.wav", "-c:a", "aac", "-b:a", "128k", "aac.m4a")
run("ffmpeg", "-y", "-i", "s16.wav", "-c:a", "alac", "alac.m4a")
run("ffmpeg", "-y", "-i", "s16.wav", "-c:a", "flac", "flac.ogg")
run("ffmpeg", "-y", "-i", "s16.wav", "-ar", "48000", "-c:a", "libopus", "opus.ogg")
with open("stream.wav", "wb") as out:
    # To a pipe, so that the file does not know its length.
    out.write(subprocess.run(["ffmpeg", "-i", "s16.wav", "-f", "wav", "-"], check=True, capture_output=True).stdout)

import torch
import torchaudio
from transformers import WhisperFeatureExtractor
import librosa

mono = torch.from_numpy(soundfile.read("s16.wav", dtype="float32")[0][:, 0].copy())
for to in [16_000, 44_100, 8_000]:
    torchaudio.functional.resample(mono, RATE, to).numpy().astype("<f4").tofile(f"torchaudio_{to}.f32")
at16 = torchaudio.functional.resample(mono, RATE, 16_000).numpy()
for mels in [80, 128]:
    extractor = WhisperFeatureExtractor(feature_size=mels)
    features = extractor(at16, sampling_rate=16_000, padding=False, return_tensors="np").input_features[0]
    print(features.shape)
    features.astype("<f4").tofile(f"whisper_{mels}.f32")
power = librosa.feature.melspectrogram(y=mono.numpy(), sr=RATE, n_fft=512, hop_length=128, n_mels=64, pad_mode="reflect")
print(power.shape)
np.log(np.maximum(power, 1e-10)).astype("<f4").tofile("librosa_64.f32")
