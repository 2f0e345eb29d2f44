"""Optional logging to Weights & Biases."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from base import replace_text, writing
from configs import WandbConfig
from training.run import RunFolder


@contextmanager
def tracking(run: RunFolder, step: int) -> Iterator[Callable[[dict], None]]:
    """Yields a function that sends a row of metrics to the wandb run that config.wandb asks for, if any.

    A run that continues after `step` continues in its wandb run, whose id the run folder keeps. Never asks for a login,
    never waits long for a network; if wandb refuses, or ends before the run, that is a warning.
    """
    tracked = None if run.config.wandb.mode == "disabled" else _begin(run, step)
    if tracked is None:
        yield lambda row: None
        return
    send = _sender()

    def track(row):
        if row["step"] >= tracked.starting_step:  # wandb has the earlier ones, and accepts each only once
            send(tracked.log, _numbers(row), step=row["step"])

    failed = 1
    try:
        for row in run.metrics():
            if row["step"] == step:
                track(row)
        yield track
        failed = 0
    finally:
        send(tracked.finish, exit_code=failed)


def track_report(folder: Path, config: WandbConfig, tables: Iterable) -> None:
    """Sends a comparison's tables, and all pages and pictures of its folder, to one wandb run, if config asks for it.

    tables: each with a title, a header and rows of cells. The run has the folder's name, which is also its group unless
    config has one; a report made again adds to it. Else as `tracking`.
    """
    if config.mode == "disabled":
        return
    file = folder / "wandb_id"
    known = {"id": file.read_text("utf-8", "replace"), "resume": "allow"} if file.is_file() else {}
    ways = [(f"log the report {mode}", {"mode": mode, **known}) for mode in _modes(config)]
    if tracked := _first_that_works(ways, folder, config.model_copy(update={"group": config.group or folder.name})):
        import wandb

        shown = {table.title: wandb.Table(columns=table.header, data=table.rows) for table in tables}
        for page in sorted([*folder.glob("*.html"), *folder.glob("*.svg")]):  # its images are pixels
            shown[page.name] = wandb.Html(page.read_text(encoding="utf-8"), inject=False)
        send = _sender()
        send(tracked.log, shown)
        send(tracked.finish)


def _sender() -> Callable[..., None]:
    """A function that calls another, until one fails: then it warns, once, and calls no more.

    wandb works in a process of its own, which a signal to all processes of a job ends, too; without it any call raises.
    """
    is_lost = False

    def send(call, *given, **named):
        nonlocal is_lost
        if not is_lost:
            try:
                call(*given, **named)
            except Exception as error:
                is_lost = True
                print(f"warning: wandb has ended ({type(error).__name__}); going on without it", file=sys.stderr)

    return send


def _begin(run: RunFolder, step: int):
    """The wandb run, or None if wandb refuses every way to begin it."""
    config, file = run.config, run.path / "wandb_id"
    modes = _modes(config.wandb)
    ways = [(f"start a run {mode}", {"mode": mode}) for mode in modes]
    if step and file.is_file():
        known = file.read_text("utf-8", "replace")  # of a damaged one wandb knows nothing
        # To before this step, whose rows are sent again: its evaluation may have been missing.
        rewind = {"resume_from": f"{known}?_step={step - 1}"}
        again = [(f"rewind run {known} {mode}", {"mode": mode, **rewind}) for mode in modes]
        if "online" in modes:  # not every server can rewind
            again.insert(1, (f"add to run {known} online", {"mode": "online", "id": known, "resume": "allow"}))
        ways = [*again, *ways[-1:]]
    return _first_that_works(ways, run.path, config.wandb, config=config.model_dump(mode="json"))


def _modes(config: WandbConfig) -> list[str]:
    """The modes to try in turn; none where wandb is not installed."""
    try:
        import wandb  # optional, and takes a second
    except ImportError:
        print("warning: wandb is not installed; going on without it", file=sys.stderr)
        return []
    # without a login, wandb.init would open a menu and wait
    if config.mode == "online" and not wandb.login(prompt=False, verify=False):
        print("warning: no wandb login found; logging offline", file=sys.stderr)
        return ["offline"]
    return ["online", "offline"] if config.mode == "online" else ["offline"]


def _first_that_works(ways: list[tuple[str, dict]], folder: Path, asked: WandbConfig, **more):
    """The wandb run of a folder, begun in the first way that wandb accepts, or None; the folder keeps its id."""
    for (what, how), (then, _) in zip(ways, [*ways[1:], ("continue without it", None)]):
        import wandb  # which may be missing where there is no way

        try:
            settings = wandb.Settings(init_timeout=20, silent=True)
            place = {"name": folder.name, "dir": folder, **asked.model_dump(exclude={"mode"})}
            tracked = wandb.init(**place, settings=settings, **more, **how)
        except Exception as error:  # its own, ValueError, or what the system says of its process
            reason = " ".join(str(error).split())
            print(f"warning: wandb could not {what} ({reason:.200}); next: {then}", file=sys.stderr)
        else:
            with writing(file := folder / "wandb_id"):
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
