"""Small Hugging Face checkpoints with random weights, for tests without a hub."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
}


def write_letters_tokenizer(path: Path, letters: Iterable[str]) -> int:
    """Write BERT's tokenizer with a token for each letter.

    Returns:
        The number of its tokens; 0 is the padding.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens = [*SPECIAL.values(), *sorted(set(letters))]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL).save_pretrained(path)
    return len(vocabulary)


def write_bert(path: Path, letters: Iterable[str], hidden: int = 32, **config: Any) -> str:
    """Write a BERT classifier of two layers, always with the same weights, and its tokenizer.

    Args:
        hidden: width of its layers.
        config: values for transformers' BertConfig.

    Returns:
        The path.
    """
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    shape = {
        "vocab_size": write_letters_tokenizer(path, letters),
        "hidden_size": hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 2 * hidden,
        **config,
    }
    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(**shape)).save_pretrained(path)
    return str(path)
