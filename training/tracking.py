"""Weights & Biases as an option: absent, it is an object that does nothing."""

import sys

from configs import Config


class NoTracker:
    """Tracks nothing."""

    def log(self, row: dict) -> None:
        pass

    def finish(self) -> None:
        pass


class WandbTracker:
    """Sends metric rows to a wandb run. Never asks for a login and never waits long for a network."""

    def __init__(self, config: Config):
        import wandb  # takes a second, so only where it is switched on

        mode = config.wandb.mode
        # without a login wandb.init would open a menu and wait
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            print("warning: no wandb login found; logging offline", file=sys.stderr)
            mode = "offline"
        try:
            self.run = self._init(wandb, config, mode)
        except wandb.Error as error:
            print(f"warning: wandb could not go online ({error}); logging offline", file=sys.stderr)
            self.run = self._init(wandb, config, "offline")

    @staticmethod
    def _init(wandb, config: Config, mode: str):
        return wandb.init(
            mode=mode,
            project=config.wandb.project,
            group=config.wandb.group,
            tags=config.wandb.tags,
            name=config.name,
            dir=config.folder,
            config=config.model_dump(mode="json"),
            settings=wandb.Settings(init_timeout=20, silent=True),
        )

    def log(self, row: dict) -> None:
        self.run.log(row, step=row["step"])

    def finish(self) -> None:
        self.run.finish()


def build_tracker(config: Config) -> NoTracker | WandbTracker:
    """The tracker that config.wandb asks for."""
    return NoTracker() if config.wandb.mode == "disabled" else WandbTracker(config)
