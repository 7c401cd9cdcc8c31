"""500 requests of 16 clients while another process adds people: each is answered, and everybody who was
acknowledged is found."""

import concurrent.futures
import subprocess
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from plsc.apps.serving.gallery import Gallery
from plsc.apps.serving.service.app import create_app
from plsc.apps.serving.service.options import Options
from tests.apps.serving.running import PATIENT, Pixels, picture, running, samples
from tests.helpers.launch import start_python

REQUESTS, CLIENTS = 500, 16
KNOWN = 20
FIRST = 1000  # seed of the first person's picture whom the other process adds
# Adds person after person until its input ends, and names each when the gallery has acknowledged it.
ADD = f"""
import sys, threading
from plsc.apps.serving.gallery import Gallery
from tests.apps.serving.running import Pixels, picture, samples

ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
gallery, number = Gallery.open(sys.argv[1]), {FIRST}
while not ended.is_set() and number < {FIRST} + 5000:
    gallery.add(f"Added {{number}}", Pixels().embed(samples(picture(number))[None]))
    print(number, flush=True)
    number += 1
gallery.close()
"""


@pytest.mark.slow
def test_no_request_fails_while_another_process_adds_people(tmp_path):
    gallery = Gallery.build(
        tmp_path / "gallery", Pixels(), {f"P{seed}": [samples(picture(seed))] for seed in range(KNOWN)}
    )
    gallery.set_threshold(0.9)
    known = [picture(seed) for seed in range(KNOWN)]
    stranger = picture(KNOWN, noise=1)

    with running(create_app(Pixels(), gallery, Options(deadline=PATIENT))) as client:

        def ask(number):
            seed = number % KNOWN
            match number % 5:
                case 0:
                    status, answer = client.send("/verify", known[seed], name=f"P{seed}")
                    return status, answer["same"]
                case 1:
                    status, answer = client.send("/search", stranger)
                    return status, answer["verdict"] == "nobody"
                case 2:
                    status, answer = client.ask("GET", "/people?limit=10000")
                    return status, {f"P{seed}" for seed in range(KNOWN)} <= set(answer["names"])
                case _:
                    status, answer = client.send("/search", known[seed])
                    return status, answer["name"] == f"P{seed}"

        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        adding = start_python("-c", ADD, gallery.path, **pipes)
        try:
            first = adding.stdout.readline()
            with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
                answered = Counter(pool.map(ask, range(REQUESTS)))
            adding.stdin.close()
            rest = adding.stdout.read()
            adding.wait(60)
        finally:
            adding.kill()
        assert adding.returncode == 0
        assert answered == {(200, True): REQUESTS}

        added = [int(line) for line in (first + rest).splitlines()]
        assert added == [*range(FIRST, FIRST + len(added))] and len(added) > 1
        names = set(client.ask("GET", "/people?limit=10000")[1]["names"])
        assert {f"Added {number}" for number in added} <= names
        for number in added[:: max(1, len(added) // 20)]:
            assert client.send("/search", picture(number))[1]["name"] == f"Added {number}"
    embeddings = Pixels().embed(np.stack([samples(picture(number)) for number in added]))
    nearest = [matches[0].name for matches in gallery.search(embeddings, 1)]
    assert nearest == [f"Added {number}" for number in added]
