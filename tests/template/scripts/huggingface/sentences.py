"""A data set and a model that need no download."""

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Random tokens; the label says whether the first one is in the upper half."""

    def __init__(self, number: int = 256) -> None:
        self.tokens = torch.randint(64, (number, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "labels": (tokens[0] >= 32).long()}


def classifier() -> BertForSequenceClassification:
    """A BERT of one layer."""
    config = BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    return BertForSequenceClassification(config)
