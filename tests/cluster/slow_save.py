"""A network with which a save of one rank takes some seconds: the others wait in its barrier."""

import time
from pathlib import Path

import plsc.checkpoint.store
from plsc import distributed
from plsc.backbones.small_resnet import SmallResNet


class SlowSave(SmallResNet):
    """The network of tiny.yaml.

    Args:
        marks: folder in which a file `slow` asks for this, and `saving` is made when such a save begins.
        seconds: how long the save takes.
        of_rank: the rank.
    """

    def __init__(
        self,
        marks: str,
        image_shape: tuple[int, int, int],
        embedding_size: int,
        widths: list[int],
        blocks: list[int],
        dropout: float,
        seconds: float = 20.0,
        of_rank: int = 1,
    ):
        super().__init__(embedding_size, image_shape, widths, blocks, dropout)
        write = plsc.checkpoint.store.write_synced

        def slow(path, *args):
            mark = Path(marks, "saving")
            if distributed.rank() == of_rank and Path(marks, "slow").exists() and not mark.exists():
                mark.touch()
                time.sleep(seconds)
            return write(path, *args)

        plsc.checkpoint.store.write_synced = slow
