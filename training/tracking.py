"""Weights & Biases as an option."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from training.run import RunFolder, replace_text


@contextmanager
def tracking(run: RunFolder, step: int) -> Iterator[Callable[[dict], None]]:
    """Gives a function that sends a row of metrics to the wandb run that config.wandb asks for, if any.

    A run that goes on after `step` goes on in its wandb run, whose id the run folder keeps. Never asks for a login and
    never waits long for a network; what wandb refuses is a warning.
    """
    tracked = None if run.config.wandb.mode == "disabled" else _begin(run, step)
    if tracked is None:
        yield lambda row: None
        return

    def track(row):
        if row["step"] >= tracked.starting_step:  # it has the others, and takes them once
            tracked.log(_numbers(row), step=row["step"])

    failed = 1
    try:
        for row in run.metrics():
            if row["step"] == step:
                track(row)
        yield track
        failed = 0
    finally:
        tracked.finish(exit_code=failed)


def _begin(run: RunFolder, step: int):
    """The wandb run, or None where wandb refuses all that could be one."""
    import wandb  # takes a second, so only where it is switched on

    config, file = run.config, run.path / "wandb_id"
    modes = ["online", "offline"] if config.wandb.mode == "online" else ["offline"]
    # without a login wandb.init would open a menu and wait
    if "online" in modes and not wandb.login(prompt=False, verify=False):
        print("warning: no wandb login found; logging offline", file=sys.stderr)
        modes.remove("online")
    ways = [(f"start a run {mode}", {"mode": mode}) for mode in modes]
    if step and file.is_file():
        known = file.read_text(encoding="utf-8")
        # To before this step, whose rows come once more: the evaluation may have been missing.
        rewind = {"resume_from": f"{known}?_step={step - 1}"}
        again = [(f"rewind run {known} {mode}", {"mode": mode, **rewind}) for mode in modes]
        if "online" in modes:  # not every server can rewind
            again.insert(1, (f"add to run {known} online", {"mode": "online", "id": known, "resume": "allow"}))
        ways = [*again, ways[-1]]
    for (what, how), (then, _) in zip(ways, [*ways[1:], ("go on without", None)]):
        try:
            tracked = wandb.init(
                project=config.wandb.project,
                group=config.wandb.group,
                tags=config.wandb.tags,
                name=config.name,
                dir=run.path,
                config=config.model_dump(mode="json"),
                settings=wandb.Settings(init_timeout=20, silent=True),
                **how,
            )
        except (wandb.Error, ValueError) as error:
            said = " ".join(str(error).split())
            print(f"warning: wandb could not {what} ({said:.200}); next: {then}", file=sys.stderr)
        else:
            replace_text(file, tracked.id)
            return tracked
    return None


def _numbers(row: dict) -> dict:
    """The row with each list, such as a drift for each θ, as numbers of their own: key/0, key/1 …"""
    found = {}
    for key, value in row.items():
        inner = {f"{key}/{i}": each for i, each in enumerate(value)} if isinstance(value, list) else None
        found |= _numbers(inner) if inner else {key: value}
    return found
