"""What a checkpoint holds of the policy: trainable weights, optimizer, random state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from assay.errors import UserError

WEIGHTS, OPTIMIZER = "policy.safetensors", "optimizer.pt"


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name; tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def save_state(
    folder: Path, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, steps: int
) -> None:
    """Write parameters, optimizer, the number of its ``steps`` and torch's random state. Raises OSError."""
    state = {"optimizer": optimizer.state_dict(), "optimizer_steps": steps, "random": torch.get_rng_state()}
    try:
        save_file({name: p.detach().contiguous() for name, p in parameters.items()}, folder / WEIGHTS)
        torch.save(state, folder / OPTIMIZER)
    except (SafetensorError, RuntimeError) as error:  # what they make of a disk that is full
        raise OSError(f"{folder} cannot be written: {str(error).splitlines()[0]}") from error


def load_state(folder: Path, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> int:
    """Read what :func:`save_state` wrote into the tensors that are there; returns the optimizer's steps.

    Engines that share the tensors see the new values. Raises UserError when the checkpoint is of another model.
    """
    load_weights(folder, parameters)
    state = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    return state["optimizer_steps"]


@torch.no_grad()
def load_weights(folder: Path, parameters: Mapping[str, nn.Parameter]) -> None:
    """Read the parameters alone of what :func:`save_state` wrote. Raises UserError as :func:`load_state` does."""
    saved = load_file(folder / WEIGHTS)
    theirs = {name: tuple(value.shape) for name, value in saved.items()}
    mine = {name: tuple(p.shape) for name, p in parameters.items()}
    if theirs != mine:
        odd = min(name for name in theirs.keys() | mine.keys() if theirs.get(name) != mine.get(name))
        raise UserError(f"checkpoint {folder} is of another model: they differ in {odd}")
    for name, parameter in parameters.items():
        parameter.copy_(saved[name])
