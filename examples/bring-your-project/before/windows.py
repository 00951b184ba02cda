"""Write windows.npz: vibrations of a bearing, normal ones and faulty ones, made by a formula.

python windows.py windows.npz
"""

import sys
from pathlib import Path

import numpy as np

LENGTH = 128  # samples of a window


def windows(count: int, faulty: bool, rng: np.random.Generator) -> np.ndarray:
    """(count, LENGTH) float32: two tones of the shaft and noise; a fault adds short knocks."""
    time = np.arange(LENGTH) / LENGTH
    phase = rng.uniform(0, 2 * np.pi, (count, 2, 1))
    speed = rng.uniform(3, 5, (count, 1))
    signal = np.sin(2 * np.pi * speed * time + phase[:, 0])
    signal += 0.4 * np.sin(4 * np.pi * speed * time + phase[:, 1])
    if faulty:
        for shift in rng.uniform(0, 1, (3, count, 1)):
            distance = (time - shift) * LENGTH
            signal += 1.5 * np.exp(-((distance / 2) ** 2)) * np.sin(distance * 2)
    return (signal + rng.normal(0, 0.1, signal.shape)).astype(np.float32)


def write(path: Path, normal: int = 1600, faulty: int = 200, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    np.savez(path, normal=windows(normal, False, rng), faulty=windows(faulty, True, rng))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
