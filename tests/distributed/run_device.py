"""Two ranks of which only the first has a card, as Paddle is made to say: both refuse it before they
start."""

from plsc import distributed
from plsc.distributed import device
from plsc.errors import UserError

device.why_none = lambda device, ranks: "" if distributed.rank() == 0 else "none there"
try:
    distributed.init("auto")
except UserError as error:
    print(f"refused: {error}")
