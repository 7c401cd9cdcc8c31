"""The command line of plsc run on several machines."""

import pytest

from plsc.apps.supervise.options import Machines, read_options
from plsc.errors import UserError

REST = ["--nproc_per_node", "2", "--devices", "0,1", "t.py", "-c", "x"]
MACHINES = ["--rank", "1", "--master", "10.0.0.1:8090"]


def test_one_machine_is_the_default():
    for nodes in ([], ["--nnodes", "1"], ["--nnodes=1"]):
        options = read_options([*nodes, *REST])
        assert options.machines is None and options.program == REST[4:]
        assert (options.ranks, options.max_failures, options.devices) == (2, 3, "0,1")


def test_machines_are_read_and_kept_from_the_launcher():
    options = read_options(["--nnodes", "2:4", *MACHINES, "--wait=1.5", "--max_failures", "9", *REST])
    assert options.machines == Machines(2, 4, 1, "10.0.0.1", 8090, 1.5) and options.machines.elastic
    assert (options.ranks, options.max_failures, options.devices) == (2, 9, "0,1")
    assert not read_options(["--nnodes", "3", *MACHINES, *REST]).machines.elastic


@pytest.mark.parametrize(
    "given, line",
    [
        (["--nnodes", "two", *MACHINES], r"--nnodes: .* \(got two\)"),
        (["--nnodes", "4:2", *MACHINES], r"--nnodes: .* \(got 4:2\)"),
        (["--nnodes", "0", *MACHINES], r"--nnodes: .* \(got 0\)"),
        (["--nnodes", "2", "--master", "a:1"], r"--rank: .* 0 to 1, and keeps it \(got none\)"),
        (["--nnodes", "2", "--rank", "2", "--master", "a:1"], r"--rank: .*\(got 2\)"),
        (["--nnodes", "2", "--rank", "1"], r"--master: .*\(got none\)"),
        (["--nnodes", "2", "--rank", "1", "--master", "10.0.0.1"], r"--master: .*\(got 10.0.0.1\)"),
        (["--nnodes", "2", "--rank", "1", "--master", "a:99999"], r"--master: .*\(got a:99999\)"),
        (["--nnodes", "2", "--rank", "1", "--master", "etcd://a:1"], r"--master: .*\(got etcd://a:1\)"),
        (["--nnodes", "2", *MACHINES, "--wait", "-1"], r"--wait: .*\(got -1\)"),
        (["--max_failures", "0"], r"--max_failures: .*\(got 0\)"),
        (["--max_failures", "²"], r"--max_failures: .*\(got ²\)"),
        (["--nproc_per_node", "0"], r"--nproc_per_node: must be a number of 1 or more \(got 0\)"),
        (["--nproc_per_node", "many"], r"--nproc_per_node: must be a number of 1 or more \(got many\)"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(given, line):
    with pytest.raises(UserError, match=f"^{line}$"):
        read_options([*REST[: 4 if "--nproc_per_node" not in given else 0], *given, *REST[4:]])


def test_each_of_several_machines_says_how_many_ranks_it_has():
    with pytest.raises(UserError, match=r"^--nproc_per_node: must be a number of 1 or more \(got none\)$"):
        read_options(["--nnodes", "2", *MACHINES, *REST[2:]])
    assert read_options(REST[2:]).ranks is None
