"""What text costs before anything is trained: time to check and tokenise it, and disk.

Rates are those of one core as measured (docs/data.md says on what); work is spread over the cores that Snakemake is
given. Bytes a token are a stated number: 4.7 is about what GPT-2's vocabulary makes of English web text, and for a
vocabulary of one's own the 4 that the split reckons with (data/split.py).
"""

from dataclasses import dataclass

from causal_priors.data.split import BYTES_PER_TOKEN
from causal_priors.scale import Scale

# Bytes of text a second of one core: reading, checking and hashing; the same and GPT-2's BPE.
INDEX_RATE, TOKENISE_RATE = 50e6, 6e6
_GPT2_BYTES, _ID = 4.7, 2
# Tokens of FineWeb-Edu's sample-10BT.
FINEWEB_EDU_SAMPLE = 10e9


@dataclass(frozen=True)
class TextCost:
    """Of a corpus. text, shards: bytes on the disk, the shards twice while they are made."""

    tokens: float
    text: float
    core_seconds: float
    shards: float


def text_cost(tokens: float, scale: Scale) -> TextCost:
    """Return what `tokens` tokens of text cost at `scale`."""
    text = tokens * (_GPT2_BYTES if scale.tokenizer == "gpt2" else BYTES_PER_TOKEN)
    return TextCost(tokens, text, text / INDEX_RATE + text / TOKENISE_RATE, tokens * _ID)
