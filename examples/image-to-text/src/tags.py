"""Fields as text with tags, as in Donut, and a tokenizer that has a token for each tag."""

import re
from typing import Any

TAG = r"<s_[^>]+>|</s_[^>]+>|<sep/>"


def tagged(value: Any) -> str:
    """JSON as text with tags, as in Donut: {"total": 5} is <s_total>5</s_total>."""
    if isinstance(value, dict):
        return "".join(f"<s_{name}>{tagged(part)}</s_{name}>" for name, part in value.items())
    if isinstance(value, list):
        return "<sep/>".join(map(tagged, value))
    return str(value)


def parsed(text: str) -> Any:
    """The JSON of a text with tags; a text without a closed tag stays a text."""
    items: list[dict[str, Any]] = [{}]
    for found in re.finditer(r"<s_([^>]+)>(.*?)</s_\1>|<sep/>", text, re.DOTALL):
        if found[1]:
            items[-1][found[1]] = parsed(found[2])
        else:
            items.append({})
    values = items if any(items) else text.split("<sep/>")
    return values if len(values) > 1 else values[0]


def tokenizer(model_name: str, tags: list[str]) -> Any:
    """The checkpoint's tokenizer, or one of UTF-8 bytes, with a token for each tag."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if model_name == "tiny":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        of_bytes = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
        of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        of_bytes.decoder = decoders.ByteLevel()
        marks = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
        tokens: Any = PreTrainedTokenizerFast(tokenizer_object=of_bytes, **marks)
    else:
        tokens = AutoTokenizer.from_pretrained(model_name, trust_remote_code=False)
    tokens.add_special_tokens({"additional_special_tokens": tags})
    return tokens
