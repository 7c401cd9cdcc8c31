"""What the machines of a run are ordered, by reports and times that are written by hand: no sockets,
processes, waiting."""

import re

import pytest

from plsc.apps.supervise.agreement import DEAD, TAKEN_OVER, Agreement
from plsc.apps.supervise.options import Machines
from plsc.apps.supervise.reports import HUNG, Cause, Details, Outcome, Report, Stuck

OF_MACHINE_0 = {"host": "host0", "address": "10.0.0.0", "state": "running", "generation": 1}


class Job:
    """The first machine's, whose checkpoints are those that a test says."""

    logs = "out/log/machine-0"
    chosen = False
    resumes = False
    resumes_newest = False
    unfinished = True

    steps = ()  # of the checkpoints

    def newest_step(self):
        return max(self.steps, default=None)

    def is_unfinished(self, newest):
        return newest is not None and self.unfinished

    def describe_resume(self, newest):
        return f"INFO resuming the unfinished run from step {newest}"

    def stamp(self, step):
        return step


class Run:
    """Machines that report what a test says, and do what they are ordered."""

    def __init__(self, least, most=None, wait=60.0, problems=(), max_failures=3, job=None):
        machines = Machines(least, most or least, 0, "host0", 1, wait)
        self.now = 0.0
        self.job = job or Job()
        self.agreement = Agreement(
            machines, self.job, max_failures, lambda facts: list(problems), ["a=1"] if most else []
        )
        self.machines = {}
        self.lines = {}
        self.seen = {}
        self.orders = {}

    def up(self, *numbers, id="x"):
        for number in numbers:
            self.machines[number] = {"id": f"{number}{id}", "state": "ready", "generation": 0, "changes": 1}
            self.lines[number] = []
            self.seen[number] = 0
        return self

    def down(self, number):
        del self.machines[number], self.lines[number]

    def set(self, number, state, outcome=None, **fields):
        machine = self.machines[number]
        machine.update(state=state, changes=machine["changes"] + 1, **fields)
        machine["outcome"] = outcome
        return self

    def ends(self, number, code=0, **fields):
        cause = fields.pop("cause", None)
        cause = Cause(**cause) if cause else None
        return self.set(number, "ended", Outcome(code=code, cause=cause, **fields))

    def go(self, seconds=0.0):
        """Let so many seconds pass, in which all machines that are up report and obey."""
        end = self.now + seconds
        while True:
            for number, machine in list(self.machines.items()):
                self.report(number, machine)
            if self.now >= end:
                return self
            self.now = min(end, self.now + 0.5)

    def report(self, number, machine):
        fields = {k: v for k, v in machine.items() if k not in ("outcome", "number")}
        details = Details(outcome=machine.get("outcome"))
        machine["number"] = machine.get("number", 0) + 1
        report = Report(
            machine=number,
            number=machine["number"],
            host=f"host{number}",
            address=f"10.0.0.{number}",
            seen=self.seen[number],
            details=details,
            **fields,
        )
        order = self.agreement.report(report, self.now)
        self.orders[number] = order
        machine["agreement"] = order.agreement
        self.lines[number] += order.lines[max(0, self.seen[number] - order.seen) :]
        self.seen[number] = max(self.seen[number], order.seen + len(order.lines))
        if order.action == "start":
            self.set(number, "running", generation=order.generation, began=True)
        elif order.action == "stop" and machine["state"] == "running":
            self.ends(number, 1)
        elif order.action == "prepare":
            self.set(number, "ready", began=False)
        elif order.action == "end":
            report = report.model_copy(update={"state": "over", "number": machine["number"] + 1})
            self.agreement.report(report, self.now)
            del self.machines[number]

    def start(self):
        return self.go(1)

    @property
    def states(self):
        return {number: machine["state"] for number, machine in self.machines.items()}

    @property
    def codes(self):
        return {number: order.code for number, order in self.orders.items() if order.action == "end"}

    def says(self, pattern):
        """Every machine has a line that matches, the same one."""
        lines = {
            number: [line for line in said if re.search(pattern, line)] for number, said in self.lines.items()
        }
        first = next(iter(lines.values()))
        return bool(first) and all(line == first for line in lines.values())


def test_all_machines_start_together_with_the_same_order():
    run = Run(3).up(0, 2)
    run.go(5)
    assert run.states == {0: "ready", 2: "ready"}
    run.up(1).go(1)
    assert set(run.states.values()) == {"running"}
    assert run.says(
        "^INFO start 1 from the beginning on 3 machines: 0 host0 10.0.0.0, 1 host1 10.0.0.1, 2 host2 10.0.0.2$"
    )
    for number in run.machines:
        run.ends(number)
    run.go(2)
    assert run.codes == {0: 0, 1: 0, 2: 0} and run.agreement.is_over(run.now)


def test_the_order_to_start_names_ranks_address_and_what_to_resume():
    run = Run(2).up(0, 1)
    run.job.steps = [5, 10]
    run.go(1)
    start = run.agreement._start
    assert start.machines == [0, 1] and start.master.startswith("10.0.0.0:")
    assert start.overrides == ["Global.resume=true", "Global.checkpoint=newest"]
    assert run.says("resuming the unfinished run from step 10")


@pytest.mark.parametrize("elastic", [False, True])
def test_a_machine_that_does_not_come(elastic):
    run = Run(2, 3, wait=20) if elastic else Run(3, wait=20)
    run.up(0, 2).go(19)
    assert run.states == {0: "ready", 2: "ready"}
    run.go(3)
    if elastic:
        assert run.agreement._start.machines == [0, 2] and run.says("on 2 machines: .*, without machine 1$")
    else:
        assert run.codes == {0: 1, 2: 1} and run.says(
            "^ERROR 2 of at least 3 machines within 20 s: machine 1 did not come"
        )


def test_waiting_is_said_with_the_numbers_that_are_missing():
    run = Run(3, wait=100).up(0).go(40)
    assert run.says("^INFO waiting for machines 1, 2$")


def test_a_failure_ends_the_ranks_everywhere_and_the_cause_is_said_by_all():
    run = Run(2).up(0, 1).start()
    run.job.steps = [10]
    lost = {"text": "rank 0 failed: gloo", "consequence": True, "rank": 0, "age": 0.4}
    run.ends(0, 1, cause=lost)
    run.report(0, run.machines[0])
    run.ends(1, 1, cause={"text": "rank 1 was killed (signal 9) at step 12", "rank": 1, "age": 0.2})
    run.go(3)
    assert run.says(
        r"^WARNING machine 1 \(host1\): rank 1 was killed \(signal 9\) at step 12; restart 1 from step 10$"
    )
    assert set(run.states.values()) == {"running"}
    assert run.agreement._start.overrides == ["Global.resume=true", "Global.checkpoint=newest"]


def test_the_earliest_cause_counts_and_a_users_mistake_before_all():
    run = Run(3).up(0, 1, 2).start()
    run.ends(0, 1, cause={"text": "late", "rank": 0, "age": 0.1})
    run.ends(1, 1, cause={"text": "early", "rank": 1, "age": 0.3})
    run.ends(2, 1, cause={"text": "labels.txt:3", "rank": 2, "user": True})
    run.go(2)
    assert run.codes == {0: 2, 1: 2, 2: 2} and run.says(
        r"^ERROR machine 2 \(host2\): labels.txt:3; not restarted"
    )


def test_a_rank_that_hangs_is_that_with_the_fewest_collectives_or_that_was_stopped():
    for halted, expected in ((False, "rank 1"), (True, "rank 2")):
        run = Run(3).up(0, 1, 2).start()
        run.ends(0, 1, cause={"text": "rank 0 failed: gloo", "consequence": True, "rank": 0}).go(0)
        run.ends(1, 1, stuck=[Stuck(rank=1, text="rank 1 is at step 4", begun=7)])
        run.ends(2, 1, stuck=[Stuck(rank=2, text="rank 2 is at step 4", begun=9, halted=halted)])
        run.go(1)
        assert run.says(
            rf"^WARNING machine \d \(host\d\): {expected} is at step 4; restart 1 from the beginning"
        )


def test_a_silent_machine_is_dead_after_ten_seconds_and_waited_for():
    run = Run(2, wait=30).up(0, 1).start()
    run.job.steps = [10]
    run.down(1)
    run.go(DEAD - 1)
    assert run.states == {0: "running"}
    run.go(3)
    assert run.states == {0: "ready"}
    assert run.says(r"^WARNING machine 1 \(host1\) has not been heard of for 10 s; restart 1 from step 10$")
    run.up(1, id="y").go(2)
    assert run.states == {0: "running", 1: "running"}
    run.down(1)
    run.go(DEAD + 35)
    assert run.codes == {0: 1} and run.says("machine 1 did not come; giving up")


def test_with_fewer_machines_the_run_goes_on_and_takes_one_back_at_the_next_restart():
    run = Run(2, 3, wait=20).up(0, 1, 2).start()
    run.job.steps = [10]
    run.down(1)
    run.go(DEAD + 25)
    assert run.states == {0: "running", 2: "running"} and run.agreement._start.machines == [0, 2]
    assert "a=1" in run.agreement._start.overrides
    run.up(1, id="y").go(5)
    assert run.states[1] == "ready"
    assert run.lines[1] == ["INFO machine 1 (host1) has come; it takes part from the next start on"]
    run.ends(2, 1, cause={"text": "killed", "rank": 1}).go(3)
    assert run.agreement._start.machines == [0, 1, 2] and set(run.states.values()) == {"running"}
    for number in run.machines:
        run.ends(number)
    run.go(1)
    assert run.codes == {0: 0, 1: 0, 2: 0}


def test_a_machine_that_waits_while_the_run_ends_well_ends_well():
    run = Run(1, 2, wait=5).up(0).go(7)
    assert run.states == {0: "running"}
    run.up(1).go(2)
    run.ends(0).go(2)
    assert run.codes == {0: 0, 1: 0}


def test_a_machine_that_was_started_anew_or_lost_the_connection_is_a_failure():
    run = Run(2).up(0, 1).start()
    run.set(1, "ready").go(3)
    assert run.says(
        r"machine 1 \(host1\) had lost the connection to machine 0 and ended its ranks; restart 1"
    )
    run = Run(2).up(0, 1).start()
    run.down(1)
    run.up(1, id="y").go(TAKEN_OVER + 3)
    assert run.says(r"machine 1 \(host1\) was started anew; restart 1") and set(run.states.values()) == {
        "running"
    }


def test_a_second_machine_with_the_same_number_is_refused():
    run = Run(2).up(0, 1).start()
    other = Report(machine=1, id="other", number=1, host="host9", address="x", state="ready", generation=0)
    first = run.agreement.report(other, run.now)
    assert first.action == "wait"
    run.go(TAKEN_OVER + 1)
    second = run.agreement.report(other.model_copy(update={"number": 2}), run.now)
    assert (second.action, second.code) == ("end", 2)
    assert "machine 1 (host1) is at work with this number" in second.lines[0]
    run.go(1)
    assert set(run.states.values()) == {"running"}


def test_a_number_beyond_the_machines_is_refused():
    run = Run(2)
    other = Report(machine=2, id="other", number=1, host="host9", address="x", state="ready", generation=0)
    assert run.agreement.report(other, 0.0).code == 2


def test_a_report_that_was_delayed_on_its_way_changes_nothing():
    run = Run(2).up(0, 1).start()
    old = Report(
        machine=1, id="1x", number=1, host="host1", address="x", state="ready", generation=0, changes=1
    )
    run.agreement.report(old, run.now)
    run.go(2)
    assert set(run.states.values()) == {"running"} and not run.says("restart")


def test_it_gives_up_after_failures_without_a_new_checkpoint():
    run = Run(2, max_failures=2).up(0, 1).start()
    run.job.steps = [10]
    for number, steps in enumerate(([10], [20], [20], [20])):
        run.job.steps = steps
        assert set(run.states.values()) == {"running"}, number
        run.ends(1, 1, cause={"text": "killed", "rank": 1}).go(3)
    assert run.codes == {0: 1, 1: 1}
    assert run.says(
        r"^ERROR machine 1 \(host1\): killed; giving up after 2 failures without a new checkpoint"
    )


def test_what_differs_between_machines_ends_all_of_them_with_its_line():
    run = Run(2, problems=["machine 1 (host1): Paddle 2.6.2"]).up(0, 1).go(2)
    assert run.codes == {0: 2, 1: 2} and run.says(r"^ERROR machine 1 \(host1\): Paddle 2.6.2$")


def test_a_mistake_on_one_machine_ends_all_of_them():
    run = Run(2).up(0, 1)
    run.set(1, "refused", Outcome(code=2, cause=Cause(text="Head.name: no such", user=True))).go(1)
    assert run.codes == {0: 2, 1: 2} and run.says(r"^ERROR machine 1 \(host1\): Head.name: no such$")


def test_a_new_run_that_dies_while_it_starts_does_not_go_on_from_an_older_one():
    job = Job()
    job.unfinished = False
    run = Run(2, job=job).up(0, 1)
    run.job.steps = [9]
    run.start()
    run.ends(1, 1, cause={"text": "killed", "rank": 1}).go(3)
    assert run.says("restart 1 from the beginning") and run.agreement._start.overrides == []


@pytest.mark.parametrize("number", [0, 1])
def test_a_signal_stops_all_machines_with_the_same_code(number):
    run = Run(2).up(0, 1).start()
    run.job.steps = [12]
    run.machines[number]["signal"] = "SIGTERM"
    for each in (0, 1):
        run.ends(each, 0, stopped="SIGTERM")
    run.go(1)
    assert run.codes == {0: 143, 1: 143} and run.says(
        "^INFO stopped on SIGTERM at step 12; resume with the same command$"
    )


def test_a_signal_before_a_start_and_one_that_could_not_be_saved():
    run = Run(2).up(0)
    run.machines[0]["signal"] = "SIGINT"
    run.go(1)
    assert run.codes == {0: 130}
    run = Run(2).up(0, 1).start()
    run.machines[1]["signal"] = "SIGTERM"
    run.ends(1, 1, cause={"text": "disk full", "rank": 1}).go(1)
    assert run.codes == {0: 1, 1: 1} and run.says(
        r"^ERROR not saved on SIGTERM: machine 1 \(host1\): disk full$"
    )


def test_a_machine_that_is_asked_to_leave_is_left_out_where_fewer_are_enough():
    run = Run(1, 2, wait=60).up(0, 1).start()
    run.job.steps = [12]
    run.machines[1]["signal"] = "SIGTERM"
    for each in (0, 1):
        run.ends(each, 0, stopped="SIGTERM")
    run.go(2)
    assert run.codes == {1: 143} and run.states == {0: "running"} and run.agreement._start.machines == [0]
    assert run.says(r"^INFO machine 1 \(host1\) leaves on SIGTERM; the others go on$")


def test_names_from_other_machines_forge_no_line():
    run = Run(2).up(0, 1)
    run.agreement._members.clear()
    evil = Report(
        machine=1,
        id="1x",
        number=99,
        host="h\n2026 INFO all is well\x1b[2J",
        address="x",
        state="ready",
        generation=0,
    )
    run.agreement.report(evil, 0.0)
    run.down(1)
    run.go(DEAD + 1)
    assert all("\n" not in line and "\x1b" not in line for line in run.lines[0])


def test_the_cause_is_what_happened_first_though_its_machine_has_reported_since():
    run = Run(2).up(0, 1).start()
    run.ends(1, 1, cause={"text": "early", "rank": 1, "age": 3.0})
    run.report(1, run.machines[1])
    run.now += 2.5
    run.report(1, run.machines[1])
    run.ends(0, 1, cause={"text": "late", "rank": 0, "age": 4.0}).go(1)
    assert run.says(r"^WARNING machine 1 \(host1\): early; restart 1")


def test_a_start_that_fails_before_another_machine_has_begun_keeps_nobody_waiting():
    run = Run(2).up(0, 1)
    while run.states[0] == "ready":
        run.report(1, run.machines[1])  # machine 1 has asked just before the start
        run.report(0, run.machines[0])
    run.ends(0, 1, cause={"text": "killed", "rank": 0})
    run.report(0, run.machines[0])
    run.go(5)
    assert run.says("killed; restart 1") and run.states == {0: "running", 1: "running"}


def test_a_report_from_before_the_last_start_does_not_count_for_the_next_one():
    """Machine 1 has begun the start, and is silent; then an old report of it arrives."""
    run = Run(2).up(0, 1).start()
    run.ends(1, 1, cause={"text": "killed", "rank": 1}).go(0.5)
    run.go(3)
    machine = run.machines.pop(1)
    run.go(DEAD + 2)
    run.machines[1] = machine
    run.set(1, "ready", generation=1).report(1, machine)
    run.set(1, "running", generation=2)
    run.go(5)
    assert run.states == {0: "running", 1: "running"}
    assert {each["generation"] for each in run.machines.values()} == {run.agreement._generation}


def test_what_an_earlier_process_of_the_first_machine_has_ordered_does_not_count():
    run = Run(2).up(0).go(1).up(1)
    run.machines[1].update(generation=1, agreement="earlier")
    run.seen[1] = 7
    run.report(1, run.machines[1])
    assert (run.orders[1].action, run.orders[1].seen) == ("wait", 0)
    run.report(0, run.machines[0])
    assert run.states == {0: "ready", 1: "ready"}
    run.seen[1] = 0
    run.machines[1].update(generation=0)
    run.go(2)
    assert set(run.states.values()) == {"running"} and run.says("^INFO start 1")
    assert not run.says("restart")


def test_a_mistake_that_one_machine_finds_while_it_takes_part_ends_all_of_them():
    run = Run(2).up(0, 1).start()
    run.set(1, "refused", Outcome(code=2, cause=Cause(text="out: cannot be read now", user=True)))
    run.report(1, run.machines[1])
    run.down(1)
    run.go(3)
    assert run.codes == {0: 2} and run.says(
        r"^ERROR machine 1 \(host1\): out: cannot be read now; not restarted"
    )
    assert run.agreement.is_over(run.now)


def test_a_mistake_on_a_machine_that_comes_later_does_not_end_the_others_where_they_are_enough():
    run = Run(1, 2, wait=5).up(0).go(7)
    run.up(1).set(1, "refused", Outcome(code=2, cause=Cause(text="Head.name: no such", user=True))).go(1)
    assert run.states[0] == "running"
    run.ends(0, 1, cause={"text": "killed", "rank": 0}).go(8)
    assert run.states[0] == "running" and run.codes[1] == 2
    assert r"INFO machine 1 (host1) takes no part: Head.name: no such; the others go on" in run.lines[0]


def test_a_machine_that_waits_to_take_part_can_be_stopped():
    run = Run(1, 2, wait=5).up(0).go(7)
    run.up(1).go(1)
    run.machines[1]["signal"] = "SIGINT"
    run.go(2)
    assert run.codes == {1: 130} and run.states == {0: "running"}


def test_machines_are_not_silent_while_the_first_one_itself_stands_still():
    run = Run(2).up(0, 1).start()
    run.now += 15
    run.agreement.report(Report(machine=0, id="0x", number=10**6, **OF_MACHINE_0), run.now)
    run.go(5)
    assert set(run.states.values()) == {"running"} and not run.says("restart")


def test_a_disk_on_which_the_first_machine_waits_for_some_seconds_ends_nothing():
    run = Run(2).up(0, 1).start()
    first = run.machines.pop(0)
    run.go(DEAD + 10)
    run.machines[0] = first
    run.go(2)
    assert set(run.states.values()) == {"running"} and not run.says("restart")
    run.machines.pop(0)
    run.go(HUNG + 2)
    assert run.states == {1: "ready"}


def test_the_first_line_says_where_a_config_that_resumes_goes_on():
    job = Job()
    job.chosen = job.resumes = True
    run = Run(2, job=job).up(0, 1)
    run.job.steps = [10]
    run.start()
    assert run.says("^INFO start 1 from the checkpoint that the config names on 2 machines")


def test_a_new_run_that_a_machine_leaves_does_not_go_on_from_an_older_one():
    job = Job()
    job.unfinished = False
    run = Run(1, 2, job=job).up(0, 1)
    run.job.steps = [9]
    run.start()
    run.machines[1]["signal"] = "SIGTERM"
    for each in (0, 1):
        run.ends(each, 0, stopped="SIGTERM")
    run.go(2)
    assert run.states == {0: "running"} and run.agreement._start.overrides == ["a=1"]


def test_a_machine_that_comes_after_the_end_is_told_how_it_was():
    run = Run(2, max_failures=1).up(0, 1).start()
    run.ends(1, 1, cause={"text": "killed", "rank": 1}).go(1)
    assert run.codes == {0: 1, 1: 1}
    run.up(1, id="y").go(1)
    assert run.codes[1] == 1 and len(run.lines[1]) == 1 and "giving up after 1 failure" in run.lines[1][0]
