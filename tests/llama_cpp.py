"""llama.cpp in a process of its own: it prints much, leaves threads behind and ends the process on what it dislikes."""

import http.client
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

IS_INSTALLED = find_spec("xllamacpp") is not None


class LlamaCpp:
    """Answers requests to its server, each a path and a body, about one file after the other."""

    def __init__(self):
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8")
        self.process = subprocess.Popen([sys.executable, __file__], **pipes)

    def __call__(self, file: Path, *requests: tuple[str, dict]) -> list[dict]:
        print(json.dumps([str(file), requests]), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


def main() -> None:
    import xllamacpp

    for line in sys.stdin:
        file, requests = json.loads(line)
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel, params.verbosity = file, 512, 1, -1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        # without these two it computes attention in half precision
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.warmup = params.fit_params = False
        server = xllamacpp.Server(params)
        connection = http.client.HTTPConnection(server.listening_address.removeprefix("http://"))
        answers = []
        for path, body in requests:
            connection.request("POST", path, json.dumps(body))
            answers.append(json.loads(connection.getresponse().read()))
        connection.close()
        print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
