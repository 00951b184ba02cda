"""Small data and a small Hugging Face checkpoint, for the tests of the example."""

import csv
import random
from pathlib import Path

import pytest

from small import ALPHABETS

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
}


@pytest.fixture(scope="session")
def rows() -> list[tuple[str, str]]:
    """240 words in three alphabets, of 1 to 12 letters, and their alphabets: easy to learn."""
    draw = random.Random(0)
    return [
        ("".join(draw.choices(alphabet, k=draw.randint(1, 12))), name)
        for name, alphabet in ALPHABETS.items()
        for _ in range(80)
    ]


@pytest.fixture
def words(rows: list[tuple[str, str]], tmp_path: Path) -> str:
    """Path of a csv file of ``rows``."""
    path = tmp_path / "words.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(path)


@pytest.fixture(scope="session")
def tiny_bert(rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a BERT of two layers, with random weights and a token for every letter."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    letters = sorted({letter for text, _ in rows for letter in text})
    vocabulary = {token: i for i, token in enumerate([*SPECIAL.values(), *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
    )
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tiny-bert")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL).save_pretrained(path)
    BertForSequenceClassification(config).save_pretrained(path)
    return str(path)
