"""Call a head in random orders on all ranks.

Arguments: the first seed and how many.
"""

import os
import sys

from plsc import distributed
from plsc.distributed import environment

threads = environment.prepare(1, "cpu")
distributed.init("cpu", threads)

from tests.heads.orders import run_orders

first, count = map(int, sys.argv[1:])
print(f"{run_orders(range(first, first + count))} calls were refused")
distributed.barrier()
os._exit(0)
