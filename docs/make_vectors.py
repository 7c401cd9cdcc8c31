"""Make x.npy and y.npy, ten vectors of each of 200 people; three more of each in people/; and who.npy, one of
person 7.

They stand in for the vectors of another program, for the four commands in data.md.
"""

from pathlib import Path

import numpy as np

rng = np.random.default_rng(0)
names = [f"person {number:03}" for number in range(200)]
centres = rng.normal(size=(200, 512))
owners = np.repeat(np.arange(200), 10)
vectors = centres[owners] + rng.normal(size=(2000, 512))
np.save("x.npy", vectors.astype(np.float32))
np.save("y.npy", np.array(names)[owners])
for name, centre in zip(names, centres):
    folder = Path("people", name)
    folder.mkdir(parents=True)
    for number in range(3):
        np.save(folder / f"{number}.npy", (centre + rng.normal(size=512)).astype(np.float32))
np.save("who.npy", (centres[7] + rng.normal(size=512)).astype(np.float32))
