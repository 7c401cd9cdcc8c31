"""The interface for Gloo on several machines: that of the address by which the launch knows this one."""

import os
import re
import socket

import pytest

from plsc.distributed import environment, network_interface
from tests.helpers.launch import run_python
from tests.helpers.refusals import refusal


@pytest.fixture
def several_machines(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    monkeypatch.setenv("PADDLE_LOCAL_SIZE", "1")
    monkeypatch.setenv("PADDLE_MASTER", "10.77.0.10:8090")
    monkeypatch.setattr(network_interface, "addresses", lambda: {"127.0.0.1": "lo", "10.77.0.11": "eth0"})
    known = {"node1": "127.0.1.1", "node2": "10.77.0.11"}

    def resolve(name):
        if name in known or name[0].isdecimal():
            return known.get(name, name)
        raise socket.gaierror

    monkeypatch.setattr(socket, "gethostbyname", resolve)

    def choose(host):
        monkeypatch.setenv("PADDLE_CURRENT_ENDPOINT", f"{host}:8091")
        return network_interface.for_gloo()

    return choose


@pytest.mark.parametrize("host", ["10.77.0.11", "node2"])
def test_the_interface_has_the_address_of_the_launch(several_machines, host):
    assert several_machines(host) == "eth0"


@pytest.mark.parametrize(
    "host, line",
    [
        ("node1", "the launch calls this machine node1, 127.0.1.1: others cannot reach it; give Paddle's"),
        (
            "box-7f3a.invalid",
            "the launch calls this machine box-7f3a.invalid, which has no IPv4 address, and Paddle",
        ),
        ("127.0.0.1", "the launch calls this machine 127.0.0.1: others cannot reach it"),
        ("10.0.0.9", r"no interface has the address 10.0.0.9 \(there are lo 127.0.0.1, eth0 10.77.0.11\)"),
    ],
)
def test_an_address_that_others_cannot_reach_is_one_line(several_machines, host, line):
    assert re.search(line, refusal(several_machines, host))


def test_another_programs_master_is_forgotten(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "10.9.9.9")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.delenv("PADDLE_MASTER", raising=False)
    environment.forget_other_master()
    assert environment.master_from_env() == ("10.9.9.9", 29500)
    monkeypatch.setenv("PADDLE_MASTER", "10.77.0.10:8090")
    environment.forget_other_master()
    assert environment.master_from_env() == ("10.77.0.10", 8090) and "MASTER_ADDR" not in os.environ


@pytest.mark.parametrize("words", [["--nnodes", "2"], ["--nnodes=2"]])
def test_a_launcher_that_ignored_its_nnodes_is_refused(words, tmp_path):
    """The launcher's stand-in starts a training with the number of machines that it has taken."""
    rank = "from plsc import Entry; Entry().train()"
    code = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {rank!r}]).returncode)"
    env = {"PADDLE_RANK_IN_NODE": "0", "PADDLE_NNODES": "1"}
    ended = run_python("-c", code, *words, "train.py", cwd=tmp_path, check=False, **env)
    assert "was started with --nnodes 2, but uses --nnodes 1; unset the" in ended.stderr
    assert ended.returncode == 1 and not any(tmp_path.iterdir())


def test_two_launches_on_this_machine_may_meet_on_loopback(several_machines, monkeypatch):
    monkeypatch.setenv("PADDLE_MASTER", "127.0.0.1:8090")
    assert several_machines("127.0.0.1") == "lo"


def test_the_users_interface_stays_and_one_machine_takes_loopback(several_machines, monkeypatch):
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "ib0")])
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert several_machines("node1") is None
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth9")
    line = "GLOO_SOCKET_IFNAME is eth9, and this machine has no such interface (there are lo, ib0); unset it"
    assert refusal(several_machines, "node1") == line
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setenv("PADDLE_LOCAL_SIZE", "2")
    assert several_machines("node1") == "lo"


def test_the_system_lists_loopback():
    assert network_interface.addresses()["127.0.0.1"] == "lo"
