"""Options of local training: optimiser, rate schedule, clipping, augmentation."""

from dataclasses import dataclass
from typing import Annotated, Literal

from feddwa.errors import InputError, require
from feddwa.params import AtMost, Option, Repeats

BETAS = (0.9, 0.999)
AUGMENTATIONS = ("flip", "crop", "cutout")
_NEEDS = {  # option -> the option it depends on, and the required values
    "momentum": ("optimizer", ("sgd",)),
    "nesterov": ("optimizer", ("sgd",)),
    "betas": ("optimizer", ("adam", "adamw")),
    "lr_decay": ("lr_schedule", ("step", "exponential")),
    "lr_step": ("lr_schedule", ("step",)),
}


@dataclass(frozen=True)
class TrainingOptions:
    """The recipe of local training. The defaults are the paper's: plain SGD at a constant rate."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Optimiser of local training, with torch's arithmetic."""
    momentum: float = 0.0
    """Momentum of sgd, from 0 to below 1."""
    nesterov: bool = False
    """Nesterov momentum."""
    weight_decay: float = 0.0
    """Strength of weight decay: added to the gradient, or decoupled with adamw."""
    betas: Annotated[str | None, Option(metavar="B1,B2")] = None
    """Decay of adam's two moments [0.9,0.999]."""
    optimizer_state: Literal["reset", "keep"] = "reset"
    """Reset the optimiser's state every round, or keep it at every client."""
    lr_schedule: Literal["constant", "step", "exponential", "cosine"] = "constant"
    """Rate over rounds: step and exponential multiply it by --lr-decay, cosine decreases it to 0."""
    lr_decay: float | None = None
    """Factor of the rate: every --lr-step rounds with step, every round with exponential."""
    lr_step: Annotated[int | None, AtMost(100_000)] = None
    """Rounds between two decays of step."""
    warmup: Annotated[int, AtMost(100_000)] = 0
    """Number of initial rounds in which the rate rises in equal steps."""
    clip_grad: float | None = None
    """Largest Euclidean norm of a step's gradient over all parameters, including the method's pulls."""
    local_steps: Repeats | None = None
    """Batches per client and round, in place of --epochs."""
    drop_last: bool = False
    """Leave out the last batch of an epoch if it is short."""
    augment: Annotated[str | None, Option(metavar="NAME,...")] = None
    """Random changes of training images: flip (horizontal), crop (shift by 4 pixels), cutout."""

    def check_training(self) -> None:
        """Raise InputError unless the values are valid, separately and together."""
        require(0 <= self.momentum < 1, "--momentum", self.momentum, "from 0 to below 1")
        require(
            0 <= self.weight_decay < float("inf"), "--weight-decay", self.weight_decay, "a finite number, 0 or more"
        )
        require(all(0 <= beta < 1 for beta in self.both_betas), "--betas", self.betas, "two numbers from 0 to below 1")
        usual = TrainingOptions()
        for option, (other, values) in _NEEDS.items():
            value, given = getattr(self, option), getattr(self, other)
            if value != getattr(usual, option) and given not in values:
                wanted = f"--{other.replace('_', '-')} {' or '.join(values)}"
                raise InputError(f"--{option.replace('_', '-')}: goes with {wanted}, not with {given}; leave it out")
        if self.nesterov and not self.momentum:
            raise InputError("--nesterov: is a form of the momentum; give --momentum a number, such as 0.9")
        if self.optimizer == "adamw" and not self.weight_decay:
            raise InputError("--optimizer adamw: is adam without --weight-decay; give that a number, such as 0.01")
        if self.optimizer_state == "keep" and self.optimizer == "sgd" and not self.momentum:
            raise InputError(
                "--optimizer-state keep: plain sgd has no state; give --momentum a number, or another optimiser"
            )
        for option, (_, values) in list(_NEEDS.items())[3:]:
            missing = self.lr_schedule in values and getattr(self, option) is None
            why = f"is needed by --lr-schedule {self.lr_schedule}"
            require(not missing, f"--{option.replace('_', '-')}", None, f"given: it {why}")
        decay = self.lr_decay
        require(decay is None or 0 < decay <= 1, "--lr-decay", decay, "above 0 and at most 1")
        require(self.lr_step is None or self.lr_step >= 1, "--lr-step", self.lr_step, "at least 1")
        require(self.warmup >= 0, "--warmup", self.warmup, "0 or more")
        clip = self.clip_grad
        require(clip is None or 0 < clip < float("inf"), "--clip-grad", clip, "a finite number above 0")
        require(self.local_steps is None or self.local_steps >= 1, "--local-steps", self.local_steps, "at least 1")
        for name in self.augmentations:
            require(name in AUGMENTATIONS, "--augment", name, f"of {', '.join(AUGMENTATIONS)}")
        once = len(set(self.augmentations)) == len(self.augmentations)
        require(once, "--augment", self.augment, "different names, separated by commas")

    def check_rounds(self, rounds: int | None, epochs: int) -> None:
        """Raise InputError unless they are compatible with the run's rounds and epochs."""
        short = rounds is not None and self.warmup >= rounds
        require(not short, "--warmup", self.warmup, f"less than the {rounds} rounds of the run")
        if self.local_steps is not None and epochs != 1:
            raise InputError(f"--local-steps: stands in place of --epochs {epochs}; leave one of them out")

    @property
    def both_betas(self) -> tuple[float, float]:
        """`betas` as numbers."""
        if self.betas is None:
            return BETAS
        try:
            first, second = map(float, self.betas.split(","))
        except ValueError:
            require(False, "--betas", self.betas, "two numbers separated by a comma, such as 0.9,0.999")
        return first, second

    @property
    def augmentations(self) -> tuple[str, ...]:
        """`augment` as a tuple."""
        return () if self.augment is None else tuple(name.strip() for name in self.augment.split(","))
