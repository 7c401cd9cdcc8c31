"""Import class centres of other programs, from the shard files of all ranks to a checkpoint: `plsc ckpt
import-centres`.

Of the shard files only one rank's is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from plsc.apps.migrate.shards import Gathered, find_shards
from plsc.checkpoint.reshard import FileBlocks, write_checkpoint
from plsc.checkpoint.saved import Checkpoint
from plsc.checkpoint.tensorfile import layout
from plsc.errors import UserError
from plsc.training.thresholds import OWNER, thresholds_of


def import_centres(
    sources: Sequence[str], target: str, backbone: str | None = None, num_classes: int | None = None
) -> str:
    """Gather the shards of another program into the checkpoint folder `target`; return a report.

    The layouts are those of plsc.apps.migrate.shards. `target` has a head file for each rank with that
    rank's classes in float32: centres, and momentum and bias if the layout has them.

    Args:
        sources: the folder of the shards, or the main files of all ranks.
        backbone: a checkpoint, such as plsc import makes; its network, preprocessing and config are copied.
            Without it the network has no arrays: the folder is for export-centres, reshard and the like.
        num_classes: must be the sum over the ranks.

    Raises UserError.
    """
    shards = find_shards(sources)
    gathered = Gathered(shards, num_classes)
    classes, size = gathered.ranges[-1][1], gathered.head.arrays["centres"].shape[1]
    fields = {"preprocessing": {}, "state": {}, "config": ""}
    files = {"backbone.safetensors": layout({})}
    if backbone is not None:
        saved = Checkpoint.open(backbone)
        if saved.embedding_size != size:
            raise UserError(
                f"{backbone}: gives embeddings of {saved.embedding_size} numbers, the centres have {size}"
            )
        about = {OWNER: thresholds_of(saved).to_json()}
        fields = {"preprocessing": saved.preprocessing, "state": about, "config": saved.config_yaml}
        files["backbone.safetensors"] = FileBlocks(saved.path / saved.weights_file)
    numbers = {"world_size": len(shards.files), "num_classes": classes, "embedding_size": size}
    fields = {"step": 0, "epoch": 0, **numbers, **fields}
    made = write_checkpoint(target, gathered.ranges, gathered.head, files, fields)
    return (
        f"{made}: {classes:,} classes x {size} from {len(shards.files)} ranks of {shards.layout.name} "
        f"({', '.join(sorted(gathered.head.arrays))})"
    )
