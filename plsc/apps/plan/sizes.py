"""Compute what a run takes of memory and disk, and how many classes fit: for `plsc plan`.

head_bytes(case, rate=0.1)        # of a rank, {"centres": ..., "gradient": ..., ...}
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from plsc.apps.plan.calibration import Case
from plsc.config import Config
from plsc.config.optimizer import moments_of
from plsc.utils.disk import free_bytes, nearest_folder
from plsc.utils.text import number

OLD_CLASSES = "head of compatible_with"
GB = 2**30  # bytes; what --memory and --disk are given in, and all sizes are printed in


def gigabytes(size: float) -> str:
    """Format bytes: 8.245 GB."""
    return f"{number(size / GB)} GB"


def along(points: Sequence[Sequence[float]], x: float) -> float:
    """Interpolate points [x, y] at `x`; beyond the last point extrapolate the line from the first to it."""
    xs, ys = (np.array([point[axis] for point in points], float) for axis in (0, 1))
    if x <= xs[-1]:
        return float(np.interp(x, xs, ys))
    slope = (ys[-1] - ys[0]) / (xs[-1] - xs[0]) if len(xs) > 1 else ys[-1] / xs[-1]
    return float(ys[-1] + slope * (x - xs[-1]))


def head_bytes(case: Case, rate: float, whole_budget: bool = False) -> dict[str, int]:
    """Compute the bytes of the head on a rank, by part.

    whole_budget: count all that is allowed for blocks, for otherwise more classes may take less: exponentials
    that do not fit the budget are not kept.
    """
    from plsc.training import head_bytes as of_head
    from plsc.training.build_head import logits_budget

    cfg = case.cfg
    sizes = case.shard, case.selected(rate), cfg.Model.embedding_size, case.samples
    parts = of_head.head_bytes(cfg, *sizes, _threads(case))
    if whole_budget:
        parts["blocks"] = max(parts["blocks"], logits_budget(cfg.Head))
    return parts


def _threads(case: Case) -> int:
    return max(1, (os.cpu_count() or 1) // case.ranks)


def parts_bytes(case: Case, measured: dict, rate: float, whole_budget: bool = False) -> dict[str, int]:
    """Compute the bytes of the parts of a run on a rank, by what for."""
    from plsc.training.build import bill
    from plsc.training.parts.part import Passing, Sizes

    network = backbone_bytes(case, measured)
    passing = measured.get("passing")
    later = network.get("activations", 0) if case.accumulate > 1 else 0
    sizes = Sizes(
        trained=measured["parameters"],
        frozen=measured["frozen"],
        classes=case.shard,
        selected=case.selected(rate),
        samples=case.samples,
        batch=case.batch * case.accumulate,
        threads=_threads(case),
        passing=Passing(passing["numbers"], passing["held"]) if passing else None,
        spare=4 * measured["parameters"] + later,
        whole_budget=whole_budget,
    )
    return {name: entry.memory for name, entry in bill(case.cfg, sizes).items()}


def of_old_classes(case: Case) -> Case:
    """Return a case with the head of Global.compatible_with in the place of its own."""
    from plsc.training.parts.compatible import head_of_old_classes

    return replace(case, cfg=case.cfg.model_copy(update={"Head": head_of_old_classes(case.cfg.Head)}))


def backbone_bytes(case: Case, measured: dict) -> dict[str, int]:
    """Predict the bytes of the backbone on a rank: values, gradients and momentum; activations; on a GPU also
    the buffers that samples are sent to."""
    from plsc.distributed.accelerator import Sender, asynchronous  # here: it imports Paddle

    if not measured["backbone"]:
        return {}
    trained, frozen = measured["parameters"], measured["frozen"]
    weights = 4 * ((2 + moments_of(case.cfg.Optimizer.name)) * trained + frozen)
    peak = _backbone_peak(case.batch, measured)
    parts = {"backbone": weights, "activations": max(0, round(peak) - 4 * (2 * trained + frozen))}
    if asynchronous():
        of_samples = measured.get("sample_bytes", 0) * case.batch * case.accumulate
        parts["buffers of samples"] = Sender.BUFFERS * of_samples
    return parts


def _backbone_peak(batch: int, measured: dict) -> float:
    """Predict the most bytes of a backbone with `batch` images at once.

    Beyond the last measured batch each image adds what autograd keeps of it, and more where measured batches
    show more. One point says nothing about growth: most of it may be weights.
    """
    points = [(images, peak) for images, _, peak in measured["backbone"]]
    last, peak = points[-1]
    counted = peak + measured["kept"] * (batch - last)
    return counted if len(points) == 1 else max(counted, along(points, batch))


def most(case: Case, fits: Callable[[Case], bool]) -> int:
    """Find the most classes with which a case fits, if fewer always do."""
    low, high = 0, 2**40
    while high - low > 1:
        middle = (low + high) // 2
        good = fits(Case(case.cfg, middle, case.ranks, case.batch))
        low, high = (middle, high) if good else (low, middle)
    return low


def bank_bytes_of(case: Case, classes: int) -> int:
    """Compute the bytes of so many centres and their optimizer's state."""
    from plsc.training.head_bytes import bank_bytes

    return bank_bytes(case.cfg, classes, case.cfg.Model.embedding_size)


def on_this_machine(ranks: int) -> int:
    """Return how many of the ranks run on this machine: at most one for each processor."""
    return min(ranks, os.cpu_count() or 1)


def disk_needs(case: Case, parameters: int, frozen: int = 0) -> dict:
    """Compute the bytes that a run writes: banks, a checkpoint, and the most checkpoints at a time.

    These are the ones that are kept, the best one, and the one that is being written.

    Args:
        parameters, frozen: numbers of the backbone that are trained, and others.
    """
    from plsc.training.build import bill
    from plsc.training.parts.part import Sizes

    cfg = case.cfg
    numbers = (1 + moments_of(cfg.Optimizer.name)) * parameters + frozen
    parts = sum(entry.checkpoint for entry in bill(cfg, Sizes(parameters, frozen)).values())
    return {
        "bank": bank_bytes_of(case, case.shard) * on_this_machine(case.ranks)
        if cfg.Head.bank == "disk"
        else 0,
        "checkpoint": bank_bytes_of(case, case.classes) + 4 * numbers + parts,
        "checkpoints": cfg.Checkpoint.keep + (cfg.DataLoader.Eval.dataset is not None) + 1,
    }


def disk_free(cfg: Config) -> dict:
    """Return the free bytes for the bank and for the checkpoints, and whether they share a disk."""
    bank = nearest_folder(cfg.Head.bank_folder or cfg.Global.output_dir)
    output = nearest_folder(cfg.Global.output_dir)
    return {
        "bank": free_bytes(bank),
        "checkpoints": free_bytes(output),
        "one": bank.stat().st_dev == output.stat().st_dev,
    }


def fits_disk(needs: dict, free: dict) -> bool:
    checkpoints = needs["checkpoint"] * needs["checkpoints"]
    if free["one"]:
        return needs["bank"] + checkpoints <= free["checkpoints"]
    return needs["bank"] <= free["bank"] and checkpoints <= free["checkpoints"]
