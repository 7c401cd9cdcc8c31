"""Hosts in network namespaces on this machine. Each has its own address, name, /etc/hosts and mounts.

    hosts = Hosts(2, folder)
    job = hosts.launch("Global.max_steps=20")    # Paddle's launcher on each host
    hosts.cut(1)                                 # host 1 receives nothing any more
    job.wait()                                   # exit codes, seconds after `started`, what each printed

This needs root, `ip` and `iptables`. Everything is removed with the last process and `close`.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.helpers.launch import ROOT

READY = os.geteuid() == 0 and all(map(shutil.which, ("ip", "iptables", "unshare")))
_ports = itertools.count(8100)


def _run(*words: object) -> None:
    subprocess.run(list(map(str, words)), check=True, capture_output=True)


class Hosts:
    """So many hosts, 10.77.0.10, 10.77.0.11, ... on one switch.

    names: each host's lines of /etc/hosts, after those for localhost. None: all know all.
    """

    def __init__(self, count: int, folder: Path, tree: Path = ROOT):
        self.folder, self.tree, self.count = Path(folder), tree, count
        self.switch = f"plsw{os.getpid()}"
        self.spaces = [f"plsh{os.getpid()}n{number}" for number in range(count)]
        _run("ip", "netns", "add", self.switch)
        _run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", self.switch, "link", "set", "br0", "up")
        for number, space in enumerate(self.spaces):
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
            veth = ["link", "add", "eth0", "netns", space, "type", "veth", "peer"]
            _run("ip", *veth, "name", f"sw{number}", "netns", self.switch)
            for action in (("master", "br0"), ("up",)):
                _run("ip", "-n", self.switch, "link", "set", f"sw{number}", *action)
            _run("ip", "-n", space, "addr", "add", f"10.77.0.1{number}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")

    def close(self) -> None:
        for space in (*self.spaces, self.switch):
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)

    def cut(self, host: int) -> None:
        """Let a host receive nothing from the others any more."""
        rule = ["iptables", "-A", "INPUT", "-i", "eth0", "-j", "DROP"]
        _run("ip", "netns", "exec", self.spaces[host], *rule)

    def mend(self, host: int) -> None:
        _run("ip", "netns", "exec", self.spaces[host], "iptables", "-F", "INPUT")

    def link(self, host: int, state: str) -> None:
        _run("ip", "-n", self.switch, "link", "set", f"sw{host}", state)

    def launch(self, *overrides: str, config: str = "", own=(), names=None, before=(), env=(), options=None):
        """Start Paddle's launcher on each host.

        own, before, env: each host's overrides, shell commands and variables.
        names: lines of /etc/hosts.
        options: each host's options to the launcher. None: --host with the host's address.
        """
        return Job(self, overrides, config, own, names, before, env, options)


class Job:
    def __init__(self, hosts, overrides, config, own, names, before, env, options):
        self.hosts, self.processes, self.logs = hosts, [], []
        self.ended: dict[int, float] = {}
        port = next(_ports)
        self.folder = hosts.folder
        known = "".join(f"10.77.0.1{number} node{number}\n" for number in range(hosts.count))
        for number, space in enumerate(hosts.spaces):
            mine = known if names is None else names[number]
            file = self.folder / f"hosts{number}"
            file.write_text(f"127.0.0.1 localhost\n{mine}")
            extra = before[number] if before else ""
            inside = f"hostname node{number}; mount --bind {file} /etc/hosts; {extra}\n" + 'exec "$@"'
            command = ["ip", "netns", "exec", space, "unshare", "-u", "-m", "--propagation", "private"]
            command += ["bash", "-c", inside, "host", sys.executable, "-m", "paddle.distributed.launch"]
            command += ["--nnodes", str(hosts.count), "--rank", str(number), "--log_dir", f"log/{number}"]
            command += ["--master", f"10.77.0.10:{port}"]
            command += [f"--host=10.77.0.1{number}"] if options is None else options[number]
            command += [str(hosts.tree / "tools/train.py")] + (["-c", config] if config else []) + ["-o"]
            command += [*overrides, *(own[number] if own else ())]
            said = self.folder / f"host{number}.out"
            variables = {"PYTHONPATH": str(hosts.tree), **(env[number] if env else {})}
            clean = {name: value for name, value in os.environ.items() if not name.startswith("PADDLE_")}
            self.logs.append(said)
            with open(said, "wb") as out:
                self.processes.append(
                    subprocess.Popen(
                        command,
                        cwd=self.folder,
                        env={**clean, "OMP_NUM_THREADS": "1", **variables},
                        stdout=out,
                        stderr=out,
                        start_new_session=True,
                    )
                )
        self.started = time.monotonic()

    def ranks(self, host: int) -> list[int]:
        """A host's rank processes."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == self.processes[host].pid:
                found.append(int(path.parent.name))
        return found

    def kill(self, host: int, number=signal.SIGKILL, whom: str = "rank") -> None:
        targets = self.ranks(host) if whom == "rank" else [self.processes[host].pid]
        for pid in targets:
            os.kill(pid, number)

    def close_host(self, host: int) -> None:
        """Kill all processes on a host, as losing power does."""
        self.kill(host)
        self.kill(host, whom="launcher")

    def until_step(self, step: int, output: Path | None = None, timeout: float = 120) -> None:
        """Wait until so many steps are done, by metrics.jsonl."""
        file = (output or self.folder / "out") / "metrics.jsonl"
        self.until(lambda: file.exists() and _newest(file) >= step, timeout)

    def until(self, what, timeout: float = 120) -> None:
        end = time.monotonic() + timeout
        while not what():
            assert time.monotonic() < end and any(p.poll() is None for p in self.processes), self.text()
            time.sleep(0.05)

    def wait(self, timeout: float = 120, hosts=None) -> list[int | None]:
        """Wait for these hosts' launchers. Return exit codes as a shell has them, or None for one that
        still works."""
        hosts = list(range(len(self.processes))) if hosts is None else hosts
        end = time.monotonic() + timeout
        while time.monotonic() < end and any(self.processes[number].poll() is None for number in hosts):
            for number in hosts:
                if self.processes[number].poll() is not None:
                    self.ended.setdefault(number, time.monotonic())
            time.sleep(0.05)
        for number in hosts:
            if self.processes[number].poll() is not None:
                self.ended.setdefault(number, time.monotonic())
        codes = [self.processes[number].poll() for number in hosts]
        return [code if code is None or code >= 0 else 128 - code for code in codes]

    def close(self) -> None:
        for number, process in enumerate(self.processes):
            for pid in [*self.ranks(number), process.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
            process.wait()

    def text(self, host: int | None = None) -> str:
        """What was printed on a host: by its launcher and its rank."""
        texts = []
        for number in range(len(self.processes)) if host is None else [host]:
            texts.append(self.logs[number].read_text(errors="replace"))
            for log in sorted((self.folder / f"log/{number}").glob("workerlog.*")):
                texts.append(log.read_text(errors="replace"))
        return "\n".join(texts)

    def errors(self, host: int) -> list[str]:
        """The different lines that begin with ERROR."""
        lines = (line for line in self.text(host).split("\n") if line.startswith("ERROR "))
        return list(dict.fromkeys(lines))


def _newest(file: Path) -> int:
    rows = [json.loads(line) for line in file.read_text().split("\n") if line.endswith("}")]
    return max((row.get("step") or 0 for row in rows), default=0)
