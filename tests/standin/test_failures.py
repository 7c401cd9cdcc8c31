"""Ranks on cards that die, are late, or send another size: the run ends as with Gloo, and is restarted."""

import pytest

from tests.standin.test_commands import train

pytestmark = pytest.mark.slow

FAULTY = "Model={{name: 'tests.helpers.faults:FaultyNet', plan: ['{plan}'], marks: '{marks}', embedding_size: 8, widths: [4, 6], blocks: [0, 1], dropout: 0.2}}"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("killed", "rank 1 was killed (signal 9) at step 3; restart 1 from step 2"),
        ("late", " s: rank 1 is at step 3 in"),
        ("short", "failed at step"),
    ],
)
def test_a_rank_that_fails_the_others_is_restarted_with_them(fault, said, plugin, tmp_path):
    plans = {"killed": "1:3:SIGKILL", "late": "1:3:late", "short": "0:99:late"}
    env = {
        "killed": {},
        "late": {"STANDIN_PATIENCE": "10"},  # of the 35 seconds that it is late
        "short": {"STANDIN_SHORT": f"1:75:{tmp_path}/mark"},
    }[fault]
    model = FAULTY.format(plan=plans[fault], marks=tmp_path)
    code, text = train(tmp_path, model, "Global.device=standin", ranks=2, **env, **plugin)
    assert code == 0 and said in text and "newest checkpoint step 4" in text
