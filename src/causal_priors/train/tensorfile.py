"""Tensor files, written whole or not at all."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from causal_priors.artifacts import atomic_path


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file. Raises `UserError` where the disk is full or the folder cannot be written.

    Give one entry of metadata: safetensors does not fix the order of several.
    """
    with atomic_path(path) as temporary:
        try:
            save_file(tensors, temporary, metadata=metadata)
        except SafetensorError as error:
            # What the system refuses comes in the library's own clothes.
            raise OSError(" ".join(str(error).split())) from error
