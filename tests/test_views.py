"""Where Paddle makes copies instead of views (FLAGS_use_stride_kernel=0: NPUs, XPUs, MLUs), the head is the
same."""

from tests.helpers.launch import ROOT, run_python


def test_the_cheapest_tests_pass_without_views():
    """In a process of its own, since Paddle reads the flag when it is imported."""
    ranges = "tests/heads/test_step.py::test_each_range_has_a_softmax_of_its_own[kernels-7-arcface-more0]"
    tests = ["tests/heads/banks/test_bank.py", "tests/heads/test_self_check.py", ranges]
    command = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    done = run_python(*command, cwd=ROOT, check=False, FLAGS_use_stride_kernel="0")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
