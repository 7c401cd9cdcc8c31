"""Faults in numbers, which take too long for the suite: kills and stops at random, and a run that is killed
hundreds of times.

    python -m tests.helpers.soak kills 20      kill -9 of a random rank of 2 and of 4 at a random moment, real launches
    python -m tests.helpers.soak stops 16      the same with SIGTERM, to plsc run, the launcher and a rank
    python -m tests.helpers.soak cycles 500    one plsc run whose rank is killed again and again: does anything grow?
    python -m tests.helpers.soak saves 500     one process that saves as often: the same question

Each prints its figures, and fails on the first thing that is not as "Twenty faults" in the lab book says.
--seed N for other random numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from plsc.checkpoint.store import newest_step
from plsc.training.parts.checkpoints import Checkpoints
from tests.helpers.launch import ROOT, start_python
from tests.helpers.tiny_runs import TINY, assert_equal_runs, rows, steps, train
from tests.helpers.warm import Program, Warm, all_ended, lines

TRAIN, RUN = ROOT / "tools/train.py", ROOT / "tools/run.py"
STEPS, EVERY, KEEP = 60, 5, 3
WHOM = ("plsc run", "launcher", "rank", "rank")


def training(ranks: int, rate: float, *more: str) -> list[str]:
    """Script and arguments of a run of STEPS steps, whose global batch does not depend on the number of
    ranks."""
    overrides = [f"DataLoader.Train.batch_size={12 // ranks}", f"Head.sample_rate={rate}"]
    overrides += ["Global.output_dir=out", f"Global.max_steps={STEPS}", f"Checkpoint.every_steps={EVERY}"]
    return [str(TRAIN), "-c", str(TINY), "-o", *overrides, *more]


def real(command: Sequence, folder: Path) -> subprocess.Popen:
    """Run `python *command` in `folder` by a start like a user's; what it says on stderr goes to
    folder/stderr."""
    with open(folder / "stderr", "wb") as said:
        streams = {"stdout": subprocess.DEVNULL, "stderr": said, "start_new_session": True}
        return start_python(*command, cwd=folder, env={"OMP_NUM_THREADS": "1"}, **streams)


def whole(start: Callable, folder: Path, ranks: int, rate: float) -> Path:
    """A run that nothing happens to, under the plain launcher; its output folder. `start` is `real` or that
    of a Warm."""
    folder.mkdir()
    launcher = ["-m", "paddle.distributed.launch", "--nproc_per_node", ranks, "--log_dir", "log"]
    assert start([*launcher, *training(ranks, rate)], folder).wait(timeout=200) == 0
    return folder / "out"


def supervise(start: Callable, folder: Path, ranks: int, rate: float) -> subprocess.Popen | Program:
    """The same under plsc run."""
    folder.mkdir(exist_ok=True)
    return start([RUN, "--nproc_per_node", ranks, "--max_failures", 9, *training(ranks, rate)], folder)


def alive(folder: Path, rank: int) -> tuple[int, int]:
    """Process and step of a rank; (0, 0) if it does not say."""
    try:
        record = json.loads((folder / f"out/errors/rank{rank}.alive").read_bytes())
    except (OSError, ValueError):
        return 0, 0
    return record["pid"], record["step"]


def wait_for(folder: Path, rank: int, step: int, not_pid: int, running: Callable[[], bool]) -> int:
    """The process of `rank`, another than `not_pid`, as soon as it has done `step` steps; 0 if the run ended
    before."""
    while running():
        pid, done = alive(folder, rank)
        if pid not in (0, not_pid) and done >= step:
            return pid
        time.sleep(0.002)
    return 0


# -- kills
# ----------------------------------------------------------------------------------------------------------------------


def kill_run(
    start: Callable, folder: Path, ranks: int, rate: float, count: int, draw: random.Random
) -> list[dict]:
    """One run with `count` kills; what each cost: {"rank", "step", "lost" steps, "seconds" to the next
    step}."""
    process, killed = supervise(start, folder, ranks, rate), []
    for target in sorted(draw.sample(range(STEPS - 4), count)):
        rank, old = draw.randrange(ranks), killed[-1]["pids"] if killed else {}
        victim = wait_for(folder, rank, target, old.get(rank, 0), lambda: process.poll() is None)
        time.sleep(draw.uniform(0, 0.05))
        pids = {r: alive(folder, r)[0] for r in range(ranks)}
        os.kill(victim, signal.SIGKILL)
        when, newest = time.monotonic(), newest_step(folder / "out/checkpoints") or 0
        killed.append({"rank": rank, "newest": newest, "pids": pids})
        wait_for(folder, rank, newest + 1, victim, lambda: process.poll() is None)
        killed[-1]["seconds"] = time.monotonic() - when
    assert process.wait(timeout=120) == 0 and all_ended(folder), lines(folder)
    said = lines(folder)
    assert len(said) == count, said
    for kill, line in zip(killed, said):
        found = re.fullmatch(
            r"WARNING rank (\d) was killed \(signal 9\) at step (\d+); restart \d+ from (step (\d+)|the beginning)",
            line,
        )
        assert found and int(found[1]) == kill["rank"], (kill, line)
        start = int(found[4] or 0)
        assert start >= kill["newest"], (kill, line)
        kill["step"], kill["lost"] = int(found[2]), max(0, int(found[2]) - 1 - start)
        assert kill["lost"] < EVERY, line
    return killed


def kills(folder: Path, count: int, seed: int) -> None:
    draw, found, expected = random.Random(seed), [], {}
    kinds = [(2, 1.0), (4, 0.3), (2, 0.3)]
    for number, at in enumerate(range(0, count, 3)):
        ranks, rate = kind = kinds[number % len(kinds)]
        if kind not in expected:
            expected[kind] = whole(real, folder / f"whole-{ranks}-{rate}", ranks, rate)
        here = folder / f"kills-{number}"
        killed = kill_run(real, here, ranks, rate, min(3, count - at), draw)
        assert_equal_runs(here / "out", expected[kind])
        print(
            f"{ranks} ranks, rate {rate}: "
            + ", ".join(f"rank {k['rank']} at step {k['step']} ({k['seconds']:.1f} s)" for k in killed)
        )
        found += killed
    seconds, lost = sorted(k["seconds"] for k in found), [k["lost"] for k in found]
    print(
        f"{len(found)} of {count} kills survived: every loss, weight and momentum as without them; steps computed again: at most "
        f"{max(lost)}, {sum(lost)} in all; from kill to next step: median {statistics.median(seconds):.1f} s, at most {seconds[-1]:.1f} s"
    )


# -- stops
# ----------------------------------------------------------------------------------------------------------------------


def stop_once(
    start: Callable, folder: Path, ranks: int, target: int, whom: str, draw: random.Random
) -> tuple[int, float]:
    """Start, stop after `target` steps, look. The step that was saved, and how long the end took."""
    process, rank = supervise(start, folder, ranks, 0.3), draw.randrange(ranks)
    pid = wait_for(folder, rank, target, 0, lambda: process.poll() is None)
    time.sleep(draw.uniform(0, 0.05))
    launcher = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill({"plsc run": process.pid, "launcher": launcher, "rank": pid}[whom], signal.SIGTERM)
    when = time.monotonic()
    code = process.wait(timeout=60)
    seconds, step = time.monotonic() - when, newest_step(folder / "out/checkpoints")
    said = lines(folder)[-1]
    assert code == 128 + signal.SIGTERM and all_ended(folder), said
    assert said == f"INFO stopped on SIGTERM at step {step}; resume with the same command", said
    assert steps(rows(folder / "out")) == list(range(1, step + 1)), "a step was lost, or done beyond the save"
    return step, seconds


def stops(folder: Path, count: int, seed: int) -> None:
    draw, took, expected = random.Random(seed), [], {}
    for number, at in enumerate(range(0, count, 4)):
        ranks = (2, 4)[number % 2]
        if ranks not in expected:
            expected[ranks] = whole(real, folder / f"whole-{ranks}", ranks, 0.3)
        here, now = folder / f"stops-{number}", min(4, count - at)
        for target, whom in zip(sorted(draw.sample(range(1, STEPS - 6), now)), WHOM):
            done = newest_step(here / "out/checkpoints") or 0
            step, seconds = stop_once(real, here, ranks, max(target, done + 1), whom, draw)
            took.append(seconds)
            print(f"{ranks} ranks: SIGTERM to {whom}, saved step {step} after {seconds:.1f} s")
        assert supervise(real, here, ranks, 0.3).wait(timeout=120) == 0
        assert_equal_runs(here / "out", expected[ranks])
    print(
        f"{len(took)} of {count} stops saved their step, 0 steps lost or repeated; the end took at most {max(took):.1f} s"
    )


# -- growth
# ---------------------------------------------------------------------------------------------------------------------


def sample(pid: int, folder: Path) -> dict[str, int]:
    """What must not grow: of a process, and of a run's folder."""
    files = [path for path in (folder / "out").rglob("*") if path.is_file()]
    saved = [path for path in files if "checkpoints" in path.parts]
    once = [path for path in files if path.name == "logged.json"]  # from the first resume on that drops rows
    return {
        "fds": len(os.listdir(f"/proc/{pid}/fd")),
        "rss_kb": int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]),
        "shm": len(os.listdir("/dev/shm")),
        "checkpoints": len(list((folder / "out/checkpoints").glob("step-*"))),
        "checkpoint_bytes": sum(path.stat().st_size for path in saved if path.exists()),
        "other_files": len(files) - len(saved) - len(once),
    }


def assert_no_growth(samples: list[dict[str, int]], settled: int) -> None:
    """After the first `settled`, nothing may exceed what was there until then; memory may by 2 %, as the
    allocator breathes."""
    for key in samples[0]:
        before = max(found[key] for found in samples[:settled])
        after = max(found[key] for found in samples[settled:])
        assert after <= before * (1.02 if key in ("rss_kb", "checkpoint_bytes") else 1), (key, before, after)


def kill_again_and_again(warm: Warm, folder: Path, count: int, draw: random.Random) -> list[dict[str, int]]:
    """One plsc run, its rank killed `count` times while it saves each step, then stopped by SIGTERM; a sample
    a cycle."""
    more = ["Global.max_steps=1000000", "Checkpoint.every_steps=1", f"Checkpoint.keep={KEEP}"]
    command = [RUN, "--nproc_per_node", 1, "--max_failures", 9, *training(1, 0.3, *more)]
    program, samples, pid = warm.start([*command, "DataLoader.Eval.dataset=null"], folder), [], 0
    for _ in range(count):
        pid = wait_for(folder, 0, (newest_step(folder / "out/checkpoints") or 0) + 1, pid, lambda: True)
        time.sleep(draw.uniform(0, 0.1))
        os.kill(pid, signal.SIGKILL)
        samples.append(sample(program.pid, folder))
    pid = wait_for(folder, 0, newest_step(folder / "out/checkpoints") + 1, pid, lambda: True)
    os.kill(program.pid, signal.SIGTERM)
    assert program.wait(60) == 128 + signal.SIGTERM and all_ended(folder)
    step = newest_step(folder / "out/checkpoints")
    assert steps(rows(folder / "out")) == list(range(1, step + 1)), "not every step once"
    assert len([line for line in lines(folder) if "was killed (signal 9)" in line]) == count
    return samples


def cycles(folder: Path, count: int, seed: int) -> None:
    here = folder / "cycles"
    here.mkdir()
    began = time.monotonic()
    with Warm() as warm:
        samples = kill_again_and_again(warm, here, count, random.Random(seed))
    tell(samples)
    seconds = (time.monotonic() - began) / count
    print(
        f"{count} cycles of save, kill, resume, {seconds:.1f} s each, {newest_step(here / 'out')} steps in all"
    )
    assert_no_growth(samples, min(20, count // 2))
    assert max(found["checkpoints"] for found in samples) <= KEEP + 1


def saves(folder: Path, count: int, seed: int) -> None:
    """No kills: what the process itself would leak."""
    here, samples = folder / "saves", []
    here.mkdir()

    save = Checkpoints.save

    def saved(self, *arguments):
        save(self, *arguments)
        samples.append(sample(os.getpid(), here))

    Checkpoints.save = saved
    train(
        here / "out",
        f"Global.max_steps={count}",
        "Checkpoint.every_steps=1",
        f"Global.seed={seed}",
        "DataLoader.Eval.dataset=null",
    )
    tell(samples)
    assert_no_growth(samples, count // 5)


def tell(samples: list[dict[str, int]]) -> None:
    for number in sorted({0, min(19, len(samples) - 1), len(samples) // 2, len(samples) - 1}):
        print(f"after {number + 1}: " + ", ".join(f"{key} {value}" for key, value in samples[number].items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = {"kills": kills, "stops": stops, "cycles": cycles, "saves": saves}
    parser.add_argument("part", choices=parts)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="plsc-soak-")).resolve()
    parts[given.part](folder, given.count, given.seed)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
