"""The tokens of a text: a checkpoint's own, or bytes."""

import functools
from typing import Any

END = "<|endoftext|>"


@functools.cache
def tokenizer(model_name: str) -> Any:
    """The checkpoint's tokenizer, or one of UTF-8 bytes for ``tiny``."""
    from transformers import AutoTokenizer

    if model_name == "tiny":
        return of_bytes()
    return AutoTokenizer.from_pretrained(model_name, trust_remote_code=False)


def of_bytes() -> Any:
    """A token for each byte, and one that starts and ends a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_only.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=bytes_only, bos_token=END, eos_token=END, pad_token=END
    )


def mark(tokens: Any) -> int:
    """The token before each text: the one that starts a text, or else that ends one."""
    return tokens.eos_token_id if tokens.bos_token_id is None else tokens.bos_token_id
