"""Causal optimal-transport attention. Imports nothing but torch (and triton for its kernels): see README.md."""

from .decode import Decoder
from .interface import Choice, choose, output_and_plan_rows, plan_rows, transport_attention
from .prior import DistanceLogPrior

__all__ = [
    "Choice",
    "Decoder",
    "DistanceLogPrior",
    "choose",
    "output_and_plan_rows",
    "plan_rows",
    "transport_attention",
]
