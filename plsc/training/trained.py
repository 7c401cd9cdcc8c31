"""Load a trained network, for all that use one: evaluation, prediction, export, galleries, the doctor.

start(cfg)
network = load_network(open_checkpoint(cfg), cfg)
network.embed(samples, batch_size=64)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import paddle

from plsc.checkpoint.manifest import BACKBONE
from plsc.checkpoint.saved import Checkpoint
from plsc.config import Config
from plsc.config.run import AmpCfg
from plsc.training.embed import embed
from plsc.training.mixed_precision import check_amp
from plsc.training.resume import build_backbone, load_backbone
from plsc.utils.logging import get_logger
from plsc.utils.preprocessing import DARKEST, Preprocessing


@dataclass(frozen=True)
class TrainedNetwork:
    """A trained network.

    backbone: with the weights, averaged if there are such. preprocessing: of its samples. checkpoint: that it
    is of, which has the names of its classes, its threshold and its identity. amp: mixed
    precision in which it embeds.
    """

    backbone: paddle.nn.Layer
    preprocessing: Preprocessing
    checkpoint: Checkpoint
    amp: AmpCfg | None = None

    @property
    def described(self) -> str:
        """Name run and step, for messages."""
        return f"{self.checkpoint.path.parent.parent}, step {self.checkpoint.step}"

    def choose_flip(self, wanted: bool) -> bool:
        """Return whether embeddings are of mirror images too: as for the threshold, which is warned of if it
        is not as wanted."""
        known = self.checkpoint.threshold
        flip = wanted if known.cosine is None else known.flip
        if flip != wanted:
            get_logger().warning(
                f"DataLoader.Eval.flip is {wanted}; embeddings are made with {flip}, as for the threshold of "
                f"{self.checkpoint.path.name}"
            )
        return flip

    def embed(self, samples: np.ndarray, batch_size: int) -> np.ndarray:
        """Embed samples [n, *shape]: float32 [n, D] of any length, zeros for a black image, as an exported
        graph gives them."""
        embeddings = embed(
            self.backbone,
            lambda start, stop: samples[start:stop],
            len(samples),
            self.preprocessing,
            batch_size,
            amp=self.amp,
        )
        embeddings[samples.reshape(len(samples), -1).max(1) <= DARKEST] = 0
        return embeddings


def load_network(saved: Checkpoint, cfg: Config, model: paddle.nn.Layer | None = None) -> TrainedNetwork:
    """Build the network of the config's Model, or take `model`, and give it the checkpoint's weights.

    Raises UserError if they are of another network.
    """
    backbone = model or build_backbone(cfg.Model, cfg.Global.seed, saved.preprocessing.shape)
    load_backbone(backbone, saved)
    if saved.manifest.weights != BACKBONE:
        get_logger().info(f"the weights are those of {saved.weights_file}, not the ones that are trained")
    amp = cfg.Global.amp_of_prediction
    check_amp(amp)
    return TrainedNetwork(backbone, saved.preprocessing, saved, amp)
