"""Make a head with a new bank of class centres."""

from plsc import distributed
from plsc.heads.banks import build_bank
from plsc.heads.margins import Margin
from plsc.heads.optimizer import Momentum, Rule
from plsc.heads.softmax import SoftmaxHead
from plsc.heads.spec import HeadSpec
from plsc.utils.sharding import ClassShard


def make_head(
    num_classes: int,
    embedding_size: int,
    margin: Margin | None = None,
    *,
    sharded: bool = True,
    sub_centres: int = 1,
    bias: bool = False,
    bank: str = "device",
    bank_dtype: str = "float32",
    bank_folder: str = ".",
    init_std: float | None = None,
    seed: int = 0,
    rule: Rule | None = None,
    **options,
) -> SoftmaxHead:
    """Make a head with a new bank of class centres. Every rank calls it.

    Args:
        bias: whether each class has a number that is added to its logit. Only without a margin.
        bank, bank_dtype, bank_folder: as of `build_bank`.
        init_std: standard deviation of the initial centres; None: sqrt(2 / (D + C)) for the plain softmax,
            0.01 with a margin.
        seed: of the initial centres and of the sampling.
        rule: the centres' optimizer; None: momentum SGD without weight decay.
        options: the further fields of `HeadSpec`, as are margin, sharded and sub_centres.
    """
    if sharded:
        shard = ClassShard.of_rank(num_classes, distributed.world_size(), distributed.rank())
    else:
        shard = ClassShard.whole(num_classes)
    if init_std is None:
        init_std = 0.01 if margin else (2.0 / (embedding_size + num_classes)) ** 0.5
    made = build_bank(
        bank,
        bank_dtype,
        bank_folder,
        shard,
        embedding_size * sub_centres,
        bias=bias,
        rule=rule or Momentum(),
        std=init_std,
        seed=seed,
    )
    distributed.barrier()  # disks are not equally fast, and a collective would not wait so long
    spec = HeadSpec(margin, sharded=sharded, sub_centres=sub_centres, seed=seed, **options)
    return SoftmaxHead(made, spec)
