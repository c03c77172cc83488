"""Tensor files, written whole or not at all."""

import struct
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from causal_priors.artifacts import atomic_path

# A header names some hundred tensors. Parsing takes 28 times its size.
_MAX_HEADER = 1 << 20


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


def check_header(start: bytes) -> None:
    """Look at the first 8 bytes of a safetensors file before it is parsed. Raises `ValueError` for a header above 1 MB."""
    if len(start) >= 8 and struct.unpack_from("<Q", start)[0] > _MAX_HEADER:
        raise ValueError("its header is larger than 1 MB")
