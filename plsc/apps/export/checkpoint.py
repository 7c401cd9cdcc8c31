"""Export the checkpoint that a config names: `plsc export`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import paddle

from plsc import distributed
from plsc.apps.export import export
from plsc.apps.export.int8_data import int8_data
from plsc.apps.export.kit.pictures import kit_pictures
from plsc.config import Config
from plsc.training.start import open_checkpoint
from plsc.training.trained import load_network


def export_checkpoint(
    cfg: Config, output: str | os.PathLike | None = None, model: paddle.nn.Layer | None = None
) -> dict[str, Any]:
    """Write a checkpoint's backbone to a folder in Export.formats, and compare each. Every rank calls it,
    after `start`.

    Args:
        output: the folder; None: output_dir/export.
        model: a Layer that takes the weights instead of Model.name's.

    Returns the facts of plsc.apps.export.export: files and largest differences.
    """
    saved = open_checkpoint(cfg)
    network = load_network(saved, cfg, model)
    known = network.thresholds
    folder = Path(output) if output else Path(cfg.Global.output_dir) / "export"

    def write() -> dict[str, Any]:
        facts = export(
            network.backbone,
            folder,
            formats=cfg.Export.formats,
            opset=cfg.Export.opset,
            preprocessing=network.preprocessing,
            threshold=known.threshold,
            flip=known.flip,
            threshold_set=known.threshold_set,
            threshold_step=known.threshold_step,
            calibration=known.calibration,
            network=saved.network,
            int8=partial(int8_data, cfg, saved),
            kit=kit_pictures(cfg, saved),
        )
        print(f"done: exported {saved.path} to {folder}")
        return facts

    return distributed.run_on_rank_0(write)
