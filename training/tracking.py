"""Optional logging to Weights & Biases."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from training.run import RunFolder, replace_text


@contextmanager
def tracking(run: RunFolder, step: int) -> Iterator[Callable[[dict], None]]:
    """Yields a function that sends a row of metrics to the wandb run that config.wandb asks for, if any.

    A run that continues after `step` continues in its wandb run, whose id the run folder keeps. Never asks for a login,
    never waits long for a network; if wandb refuses, that is a warning.
    """
    tracked = None if run.config.wandb.mode == "disabled" else _begin(run, step)
    if tracked is None:
        yield lambda row: None
        return

    def track(row):
        if row["step"] >= tracked.starting_step:  # wandb has the earlier ones, and accepts each only once
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
    """The wandb run, or None if wandb refuses every way to begin it."""
    import wandb  # optional, and takes a second

    config, file = run.config, run.path / "wandb_id"
    modes = ["online", "offline"] if config.wandb.mode == "online" else ["offline"]
    # without a login, wandb.init would open a menu and wait
    if "online" in modes and not wandb.login(prompt=False, verify=False):
        print("warning: no wandb login found; logging offline", file=sys.stderr)
        modes.remove("online")
    ways = [(f"start a run {mode}", {"mode": mode}) for mode in modes]
    if step and file.is_file():
        known = file.read_text(encoding="utf-8")
        # To before this step, whose rows are sent again: its evaluation may have been missing.
        rewind = {"resume_from": f"{known}?_step={step - 1}"}
        again = [(f"rewind run {known} {mode}", {"mode": mode, **rewind}) for mode in modes]
        if "online" in modes:  # not every server can rewind
            again.insert(1, (f"add to run {known} online", {"mode": "online", "id": known, "resume": "allow"}))
        ways = [*again, ways[-1]]
    for (what, how), (then, _) in zip(ways, [*ways[1:], ("continue without it", None)]):
        try:
            settings = wandb.Settings(init_timeout=20, silent=True)
            place = {"name": config.name, "dir": run.path, **config.wandb.model_dump(exclude={"mode"})}
            tracked = wandb.init(**place, config=config.model_dump(mode="json"), settings=settings, **how)
        except (wandb.Error, ValueError) as error:
            reason = " ".join(str(error).split())
            print(f"warning: wandb could not {what} ({reason:.200}); next: {then}", file=sys.stderr)
        else:
            replace_text(file, tracked.id)
            return tracked
    return None


def _numbers(row: dict) -> dict:
    """The row with each list, such as one number for each θ, as separate numbers: key/0, key/1 …"""
    found = {}
    for key, value in row.items():
        inner = {f"{key}/{i}": each for i, each in enumerate(value)} if isinstance(value, list) else None
        found |= _numbers(inner) if inner else {key: value}
    return found
