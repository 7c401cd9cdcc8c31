"""Compute the bytes that a run takes, and how many classes have room: `plsc train --dry-run`."""

from __future__ import annotations

from typing import NamedTuple

from plsc.config import Config
from plsc.heads.config import rows_bytes
from plsc.training.build import Prepared
from plsc.training.build_head import build_rule, logits_budget
from plsc.training.optim import checkpoint_numbers
from plsc.utils.disk import free_bytes
from plsc.utils.memory import available_bytes
from plsc.utils.sharding import split


def byte_lines(cfg: Config, run: Prepared, ranks: int, in_memory: bool) -> list[str]:
    """Format the bytes that a run takes, and the most classes that this machine has room for, with all ranks.

    in_memory: the banks are in the machine's memory or on its disk, not on a device.
    """
    need = Needs.of(cfg, run, ranks)
    saved = f"checkpoint {_shown(need.checkpoint)}, at most {need.checkpoints} at a time"
    of_rank = f"network {_shown(need.network)}, head {_shown(need.head)}, bank {_shown(need.bank)}"
    where = " on the disk" if cfg.Head.bank == "disk" else ""
    lines = [f"plan: bytes    of a rank: {of_rank}{where}, and the activations; {saved}"]
    if in_memory:
        lines.append(f"plan: room     {need.most_classes(cfg, ranks):,} classes at most fit this machine")
    return lines


class Needs(NamedTuple):
    """The bytes of a run. All but `network` grow with the number of classes.

    Attributes:
        network: of a rank: weights, gradients, the optimizer's arrays and an average.
        head: of a rank: gradients of the classes of a step, and blocks of logits.
        bank: of a rank: centres and their optimizer's arrays.
        checkpoint: of all ranks.
        checkpoints: on the disk at a time: those that are kept, the best, and one that is being written.
        classes: of the whole head.
    """

    network: int
    head: int
    bank: int
    checkpoint: int
    checkpoints: int
    classes: int

    @classmethod
    def of(cls, cfg: Config, run: Prepared, ranks: int) -> Needs:
        """Compute the bytes of a run on so many ranks."""
        head, size = cfg.Head, cfg.Model.embedding_size
        classes = run.dataset.num_classes
        shard = split(classes, ranks)[0][1] if head.sharded else classes
        samples = run.loader.global_batch if head.sharded else cfg.DataLoader.Train.batch_size
        selected = min(shard, round(head.sample_rate * shard) + samples) if head.sample_rate < 1 else shard
        arrays = 1 + len(build_rule(cfg.Optimizer).moments)
        saved = checkpoint_numbers(run.optimizer, run.backbone, averaged=cfg.Global.ema is not None)
        trained = sum(parameter.size for parameter in run.optimizer.parameters)
        return cls(
            network=4 * (saved + trained),
            head=4 * selected * head.row_size(size) + logits_budget(head),
            bank=rows_bytes(head, arrays, shard, size),
            checkpoint=4 * saved + rows_bytes(head, arrays, classes, size),
            checkpoints=cfg.Checkpoint.keep + (cfg.DataLoader.Eval.dataset is not None) + 1,
            classes=classes,
        )

    def most_classes(self, cfg: Config, ranks: int) -> int:
        """Compute how many classes have room in the memory and on the disk of one machine with all ranks."""
        bank_on_disk = cfg.Head.bank == "disk"
        of_classes = self.head - logits_budget(cfg.Head) + (0 if bank_on_disk else self.bank)
        free = available_bytes() / ranks - self.network - logits_budget(cfg.Head)
        on_disk = self.checkpoints * self.checkpoint + (ranks * self.bank if bank_on_disk else 0)
        room = min(free / of_classes, free_bytes(cfg.Global.output_dir) / on_disk)
        return max(0, int(self.classes * room))


def _shown(size: int) -> str:
    return f"{size / 2**30:.1f} GB" if size >= 2**30 else f"{size / 2**20:.1f} MB"
