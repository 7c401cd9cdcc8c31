"""Run what examples/ shows, on one rank and on two."""

from tests.helpers.launch import ROOT, launch, run_forked

BY_HAND = ROOT / "examples" / "train_by_hand.py"


def test_a_loop_of_ones_own_trains_samples_classes_and_resumes_on_another_number_of_ranks(tmp_path):
    said = run_forked(BY_HAND, "--steps", "60", "--output", tmp_path / "run", cwd=tmp_path).stdout
    losses = [float(line.split()[3]) for line in said.splitlines() if line.startswith("step ")]
    assert len(losses) == 3 and losses[-1] < losses[0] / 2
    again = run_forked(BY_HAND, "--steps", "60", "--output", tmp_path / "run", cwd=tmp_path).stdout
    assert again == f"{tmp_path}/run has step 60 already; give more --steps\n"
    said = launch(
        BY_HAND, 2, tmp_path, "--steps", "80", "--sample_rate", "0.2", "--output", tmp_path / "run"
    ).stdout
    steps = [line for line in said.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in steps] == ["80"], "it did not resume at step 60"
    assert float(steps[0].split()[3]) < losses[0] / 2
