"""A hub on this machine, which real `datasets` streams from."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import numpy
import pytest

from base import InputError
from data.config import DataConfig
from data.sources import open_source

ROOT = Path(__file__).parent.parent
COMMIT = "c0ffee" + "0" * 34
WORD = 1000  # bytes of a document


def text(n):
    return f"{n:06d}".ljust(WORD, ".")


def lines(numbers):
    return "".join(json.dumps({"text": text(n)}) + "\n" for n in numbers).encode()


class Hub(BaseHTTPRequestHandler):
    """Data sets at COMMIT: the files of each by name."""

    protocol_version = "HTTP/1.1"
    sets: dict[str, dict[str, bytes]]
    asked: list[str]
    furthest: int

    def log_message(self, *_):
        pass

    def say(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in {"Content_Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        path = urlsplit(self.path).path
        self.asked.append(path)
        name = next((name for name in self.sets if f"datasets/{name}" in path), None)
        if name is None:
            return self.say(b"{}")
        files = self.sets[name]
        about, tree, file = (path.partition(part) for part in (f"/api/datasets/{name}", "/tree/", "/resolve/"))
        if tree[1] and "/" not in tree[2]:
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ]
            return self.say(json.dumps(listed).encode(), Content_Type="application/json")
        if about[1] and not about[2].startswith("/tree"):
            siblings = [{"rfilename": name} for name in files]
            info = {"id": name, "sha": COMMIT, "private": False, "siblings": siblings, "tags": []}
            return self.say(json.dumps(info).encode(), Content_Type="application/json")
        data = files.get(file[2].partition("/")[2])
        if data is None:
            return self.say(b"{}", 404, X_Error_Code="EntryNotFound")
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X_Repo_Commit": COMMIT}
        if "Range" not in self.headers:
            return self.say(data, **headers)
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        last = min(int(last or len(data)), len(data) - 1)
        type(self).furthest = max(self.furthest, last)
        self.say(data[int(first) : last + 1], 206, Content_Range=f"bytes {first}-{last}/{len(data)}", **headers)

    do_HEAD = do_GET


def entry(folder):
    """Texts to train on and to validate on, and the manifest, of the one corpus in a cache."""
    (manifest,) = folder.glob("*/corpus.json")
    found = []
    for name in ("train", "val"):
        tokens = numpy.load(manifest.with_name(f"{name}.npy"))
        documents = numpy.split(tokens, (tokens == 256).nonzero()[0])[1:]
        found.append([bytes(each[1:].astype("u1")).decode() for each in documents])
    return *found, json.loads(manifest.read_text())


PROGRAM = """
import json, sys, urllib.request
from base import InputError
from data.config import DataConfig
from data.corpus import load_corpus
for endpoint, config in json.loads(sys.argv[1]):
    urllib.request.urlopen(endpoint).close()  # tells the hub that the next begins
    try:
        load_corpus(DataConfig(**config))
    except InputError as error:
        print(json.dumps(str(error)))
"""


def test_a_stream_is_a_commit_and_read_as_far_as_it_is_used(tmp_path):
    """One that validates on its own first documents, then again, one with a split of its own, and one that is not there."""
    whole = {"train.jsonl": lines(range(40_000))}
    divided = {"train.jsonl": lines(range(200)), "validation.jsonl": lines(range(500, 600))}
    hub = type("Hub", (Hub,), {"sets": {"some/set": whole, "some/other": divided}, "asked": [], "furthest": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    most = 1000 * (WORD + 1) + 50
    streamed = {"source": "some/set", "streaming": True, "max_tokens": most, "val_fraction": 0.01}
    other = {"source": "some/other", "streaming": True, "max_tokens": 100 * (WORD + 1)}
    configs = [streamed, streamed | {"revision": COMMIT}, other, other | {"split": "trian"}]
    caches = [tmp_path / name for name in ("first", "first", "other", "none")]
    for config, cache in zip(configs, caches):
        config |= {"cache_dir": str(cache), "tokenizer": {"kind": "byte"}}
    given = json.dumps([[f"{endpoint}/mark", config] for config in configs])
    env = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, given],
        cwd=ROOT,
        env=env | {"NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
    )
    server.shutdown()
    server.server_close()
    assert done.returncode == 0, done.stderr

    train, val, manifest = entry(caches[0])
    held_out = int(4 * 0.01 * most) // WORD
    assert val == [text(n) for n in range(held_out)], "the first documents, within their bytes"
    assert train == [text(n) for n in range(held_out, held_out + 1000)], "the next, whole, within max_tokens"
    assert manifest["train"]["sources"][0]["bytes"] == 1000 * WORD
    assert f"data.source 'some/set': commit {COMMIT}" in done.stderr and hub.furthest < 25_000_000 < len(
        whole["train.jsonl"]
    )

    marks = [place for place, path in enumerate(hub.asked) if path == "/mark"]
    assert marks[2] == marks[1] + 1, "a commit that is here is asked for nothing"

    train, val, _ = entry(caches[2])
    assert train == [text(n) for n in range(100)]
    assert val == [text(n) for n in range(500, 500 + int(4 * 0.1 * 100 * (WORD + 1)) // WORD)]

    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == 1 and "trian" in said[0] and not [*caches[3].glob("*/*")]


@pytest.mark.parametrize("given", [{"revision": "main"}, {"streaming": True, "max_tokens": 9}, {"split": "test"}])
@pytest.mark.parametrize("source", ["python_docs", "texts/*.txt", "/a/b.jsonl", "synthetic/copy"])
def test_what_is_not_of_the_hub_has_no_key_of_its_data_sets(given, source):
    with pytest.raises(InputError, match=f"data.{[*given][0]}: expected the name of a Hugging Face data set"):
        open_source(DataConfig(source=source, **given))


@pytest.mark.parametrize(
    "given",
    [{"streaming": True}, {"max_tokens": 5}, {"streaming": True, "max_tokens": 5, "tokenizer": {"kind": "char"}}],
)
def test_a_stream_has_an_end_and_no_characters_to_count(given):
    with pytest.raises(ValueError, match="streaming (true|false): (max_tokens|tokenizer.kind 'char')|needs|reads all"):
        DataConfig(source="some/set", **given)
