"""Embed images by a checkpoint's network, and write the embeddings: `plsc predict`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import paddle

from plsc import distributed
from plsc.config import Config
from plsc.data.to_predict import samples_to_predict
from plsc.errors import UserError, shown, writing
from plsc.training.embed import embed
from plsc.training.resume import load_network
from plsc.training.start import make_folder, open_checkpoint
from plsc.utils.atomic_write import atomic_write, replace_file
from plsc.utils.vectors import unit_rows


def predict(
    cfg: Config,
    images: str | os.PathLike | Sequence[str] | np.ndarray,
    output: str | os.PathLike | None = None,
    model: paddle.nn.Layer | None = None,
) -> tuple[np.ndarray, list[str]]:
    """Embed images, write embeddings.npy and names.txt, and return both, as `Entry.predict` says. Every rank
    calls it, after `start`.

    model: a Layer that takes the weights instead of Model.name's.
    """
    saved = open_checkpoint(cfg)
    preprocessing = saved.preprocessing
    read, names = samples_to_predict(images, preprocessing)
    if not names:
        raise UserError("predict: no images given, give at least one")
    backbone = load_network(saved, cfg, model)
    batch, flip = cfg.DataLoader.Train.batch_size, cfg.DataLoader.Eval.flip
    emb = embed(backbone, read, len(names), preprocessing, batch, flip)
    emb = unit_rows(emb)
    if distributed.rank() == 0:
        folder = Path(output) if output else Path(cfg.Global.output_dir) / "predict"
        make_folder(folder, "output" if output else "Global.output_dir")
        with writing(folder, remedy="free some space, or name another folder"):
            # A name a line; bytes of file names stay as they are.
            lines = (shown(name) if "\n" in name or "\r" in name else name for name in names)
            text = "".join(f"{line}\n" for line in lines)
            replace_file(folder / "names.txt", text.encode("utf-8", "surrogateescape"))
            with atomic_write(folder / "embeddings.npy") as beside, open(beside, "xb") as file:
                np.save(file, emb)
        print(f"done: {len(names):,} embeddings of {emb.shape[1]} numbers in {folder / 'embeddings.npy'}")
    return emb, names
