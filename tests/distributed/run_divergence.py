"""On W ranks: if one rank's step is bad, all ranks skip it, bit for bit, and one line reports it. Training
continues. Argument: a folder for the runs."""

import io
import logging
import os
import re
import sys
from pathlib import Path

from plsc import distributed as d
from plsc.data.transforms import ORDER, generator
from plsc.errors import CorruptImageError
from plsc.utils.logging import get_logger, setup_logging
from tests.helpers.broken_weights import PLACES, broken
from tests.helpers.poison import everything, leave_out, poisoned, states_before_steps
from tests.helpers.tiny_runs import checkpoints, make_trainer, part_of, refused_on_every_rank
from tests.training.test_losses import Length

folder = Path(sys.argv[1])
d.init("cpu", threads=1)
W, r = d.world_size(), d.rank()
setup_logging(r)
said = io.StringIO()
get_logger().addHandler(logging.StreamHandler(said))
overrides = [
    "DataLoader.Eval.dataset=null",
    f"DataLoader.Train.batch_size={12 // W}",
    "Head.name=dist_adaface",
]

ends = []
for bad in ("embedding", "gradient", "centres"):
    for rank in range(W):
        output = folder / f"{bad}-{rank}"
        trainer = poisoned(output, {2: bad}, *overrides, "Global.max_steps=4", rank=rank)
        states = states_before_steps(trainer)
        trainer.train(None)
        assert states[1] == states[2] and states[0] != states[1] and states[2] != states[3], bad
        ends.append(everything(trainer))
        assert ends[-1] == ends[0], (bad, rank)  # of steps 1, 3 and 4
        assert trainer.skipped == 1 and trainer.step == 4
        centres = set(d.gather_objects(everything(trainer)["linear.weight"]))
        assert len(centres) == 1, "the ranks have parted"
        lines = [line for line in said.getvalue().splitlines() if "step 2:" in line]
        said.truncate(0)
        found = d.gather_objects(lines)
        assert not any(found[1:]) and len(found[0]) == 1, found
        assert " is not finite (learning rate 0.05); step skipped (1 of 10 in a row)" in found[0][0]

# A loss beside the head's.
said.truncate(0)
trainer = make_trainer(folder / "extra", *overrides, "Global.max_steps=3")
trainer.parts.append(Length(bad=1 if r == W - 1 else None))
trainer.train(None)
assert (trainer.skipped, trainer.step) == (1, 3)
lines = d.gather_objects([line for line in said.getvalue().splitlines() if "step 2:" in line])
assert (
    "step 2: the head's loss, or a gradient with respect to the embeddings or the class centres, is not"
) in lines[0][0] and not any(lines[1:]), lines

# A float16 overflow on one rank: all skip the step and halve the scale, and the step leaves no other trace.
# With the kernels a CPU refuses float16.
kernels = os.environ.get("PLSC_KERNELS", "1")
os.environ["PLSC_KERNELS"] = "0"
FLOAT16 = [*overrides, "Global.amp=float16", "Global.max_steps=5", "LRScheduler.name=constant"]
said.truncate(0)
trainer = poisoned(folder / "overflow", {3: "gradient"}, *FLOAT16, rank=W - 1, value="inf")
trainer.train(None)
assert part_of(trainer, "loss_scale").state_dict() == {"scale": 32768.0, "good_steps": 2, "overflows": 1}
assert (trainer.skipped, trainer._skipped_in_a_row, trainer.step) == (0, 0, 5)
lines = d.gather_objects([line for line in said.getvalue().splitlines() if "overflowed" in line])
told = "step 3: the backbone's gradients overflowed in float16; step skipped, loss scale 32768 from here on"
assert [line for of_rank in lines for line in of_rank] == [told], lines

other = poisoned(folder / "left-out", {}, *FLOAT16)
leave_out(other, 3)
other.train(None)
assert everything(other) == everything(trainer) and part_of(other, "loss_scale").overflows == 0

os.environ["PLSC_KERNELS"] = kernels

# A label that is no class, on one rank: all refuse it by the same line.
for head in ("arcface", "dist_arcface"):
    trainer = poisoned(folder / head, {}, *overrides, f"Head.name={head}")
    batches = trainer.loader.from_step

    def strayed(first, batches=batches):
        for batch in batches(first):
            yield batch._replace(labels=batch.labels + 23 * (batch.step == 2 and r == W - 1))

    trainer.loader.from_step = strayed
    line = refused_on_every_rank(lambda trainer=trainer: trainer.train(None))
    assert re.fullmatch(
        rf"sample {12 - 12 // W} of the 12 in this step has label \d+, but labels .*; {12 // W} such .*", line
    )

# Images that cannot be decoded: one on the first rank and one on the last are more than 1 in 100 of 115,
# but not on either rank alone.
trainer = make_trainer(folder / "corrupt", *overrides)
loader, sound = trainer.loader, trainer.dataset.sample
order = loader._order(generator(loader.seed, 0, use=ORDER))
damaged = {order[loader.shares(0)[0][0]], order[12 + loader.shares(1)[-1][0]]}


def damaged_sample(index, epoch):
    if index in damaged:
        raise CorruptImageError("not an image")
    return sound(index, epoch)


loader.probe = lambda: None
trainer.dataset.sample = damaged_sample
line = refused_on_every_rank(lambda: trainer.train(None))
assert line.startswith("2 images of an epoch cannot be decoded: synthetic class "), line
assert len(loader.corrupt.replaced) == (r in (0, W - 1)) and loader.corrupt.limit == 1

# A weight, statistics or a centre that become NaN on one rank end the run on all, by the same line.
for place, text in PLACES.items():
    for rank in {0, W - 1}:
        trainer = broken(folder / f"{place}-{rank}", place, rank, *overrides)
        assert text.format(rank=rank) in refused_on_every_rank(lambda trainer=trainer: trainer.train(None))

output = folder / "too-many"
bad = dict.fromkeys(range(6, 13), "gradient")
trainer = poisoned(output, bad, *overrides, "Global.max_skipped=3", rank=W - 1)
line = refused_on_every_rank(lambda: trainer.train(None))
assert line.startswith(
    "step 8: a gradient of the backbone is not finite (learning rate 0.05), and 3 steps in a row"
)
assert checkpoints(output) == [4]

print(f"rank {r} of {W}: divergence ok")
