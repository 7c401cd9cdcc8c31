"""On W ranks: rank 0, which has the store, comes to a barrier last and ends at once. The others, who poll,
must still get through."""

import os
import time

from plsc import distributed

distributed.init("cpu", threads=1)
rank = distributed.rank()
if rank == 0:
    time.sleep(0.5)
distributed.barrier()
print(f"rank {rank} has passed", flush=True)
if rank == 0:
    os._exit(0)
