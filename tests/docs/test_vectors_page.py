"""The files and commands of docs/vectors.md, as they stand there: 512 numbers of 200 people to a gallery."""

import re

from tests.helpers.launch import ROOT, run_forked

PAGE = (ROOT / "docs" / "vectors.md").read_text()
FILES = dict(re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.search(r"```bash\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()


def test_vectors_of_200_people_lead_to_a_gallery_in_four_commands(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    run_forked("make_vectors.py", cwd=tmp_path)
    assert len(COMMANDS) == 4
    said = [run_forked("-m", *command.split(), cwd=tmp_path).stdout for command in COMMANDS]
    assert "errors: 0, warnings: 0" in said[0]
    assert "people.gallery: built, 200 people, 200 rows" in said[2]
    assert "of 39 people" in said[2], "those held out, by their names"
    assert said[3].startswith("who.npy: person 007\n")
