"""Two ranks of which only the first has a GPU, as Paddle is made to say: both refuse it before they start."""

from plsc import distributed
from plsc.distributed import collectives
from plsc.errors import UserError

collectives.why_no_gpu = lambda: "" if distributed.rank() == 0 else "none there"
try:
    distributed.init("auto")
except UserError as error:
    print(f"refused: {error}")
