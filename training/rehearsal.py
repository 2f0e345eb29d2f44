"""What a run will take, by some of its steps, which write nothing."""

import statistics
import sys
import time

import torch

from configs import Config
from data.corpus import Corpus, load_corpus
from model.device import pick_device
from training.alone import ALONE
from training.evaluation import EVAL_TOKENS
from training.facts import duration, opening
from training.loop import make_trainer
from training.machine import explain_out_of_memory, using_threads
from training.run import ReadRunFolder, RunFolder
from training.starting import fill_in_threads, fit_to_corpus
from training.step import optimizer_step

try:
    import resource
except ImportError:  # Windows
    resource = None

STEPS = 4  # the first warms up


def rehearse(config: Config, corpus: Corpus, resume: bool = False) -> tuple[float, list[str]]:
    """Takes STEPS steps at rate 0 in one process, not compiled, and evaluates some of the validation text.

    Returns the seconds of the whole training, or of what is left of it, and in lines what the run is made of and takes.
    InputError if config, corpus and, with resume, folder do not fit together, or if a step does not fit into memory.
    """
    run = ReadRunFolder(config, resume)
    run.config = config = fill_in_threads(fit_to_corpus(config, corpus), resume)
    train, device, times = config.train, pick_device(config.train.device), []
    with using_threads(train.threads):
        trainer = make_trainer(run, corpus, device, [], ALONE)
        for number in range(STEPS):
            begun = time.perf_counter()
            with explain_out_of_memory(device, train.micro_batch_size, train.batch_size):
                optimizer_step(trainer.model, trainer.optimizer, *trainer.batches[number], 0.0, train)
            times.append(time.perf_counter() - begun)
        begun, some = time.perf_counter(), corpus.parts[0].val[: max(EVAL_TOKENS, trainer.context) + 1]
        trainer.total_nats(some)
        evaluation = (time.perf_counter() - begun) * len(corpus.val) / len(some)
    step, left = statistics.median(times[1:]), train.steps - trainer.step
    evaluations = -(-left // (train.eval_every or train.steps))
    seconds = left * step + evaluations * evaluation
    parameters, memory = _by_part(trainer.model), _peak(device)
    return seconds, [
        *opening(config, corpus, sum(parameters.values()), device, trainer.batches.targets(train.steps)),
        f"parameters: {', '.join(f'{part} {count:,}' for part, count in parameters.items())}",
        f"memory: {'unknown here' if memory is None else f'about {memory / 2**30:.1f} GiB'}",
        f"time: about {duration(seconds)}, by {STEPS} steps: {step:.2g} s a step, and "
        f"{evaluation:.2g} s for each of the evaluations ({evaluations})",
    ]


def rehearsed(config: Config, resume: bool, overwrite: bool) -> str:
    """What `rehearse` finds, in words; InputError as from `train`."""
    run = RunFolder(config, resume, overwrite)
    _, lines = rehearse(config, load_corpus(run.data() if resume else config.data), resume)
    return "\n".join([*lines, f"nothing was written to {config.folder}"])


def _by_part(model: torch.nn.Module) -> dict[str, int]:
    counts = {}
    for name, parameter in model.named_parameters():
        first, *inner = name.split(".")
        part = inner[1] if first == "layers" else first
        part = "norms" if "norm" in part else part
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


def _peak(device: torch.device) -> int | None:
    """Bytes of memory used at most; None where nothing tells."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
