"""On W ranks: the network is measured on all of them, and random numbers stay as they were."""

import paddle

from plsc.distributed import collectives as d
from plsc.distributed import network

d.init("cpu", threads=1)
paddle.seed(5)
wanted = paddle.rand([3]).tolist()
paddle.seed(5)
network.time_collectives([(name, 8) for name in network.COLLECTIVES], rounds=1)
figures = network.measure_network()
assert all(0 < figure < float("inf") for figure in figures), figures
assert paddle.rand([3]).tolist() == wanted
print(f"measured {figures}")
d.barrier()
