"""pytorch-tabular: its network of category embeddings on 96 rows of a table."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytorch_lightning as pl
from pytorch_tabular import TabularModel
from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig
from pytorch_tabular.models import CategoryEmbeddingModel, CategoryEmbeddingModelConfig
from pytorch_tabular.tabular_datamodule import TabularDatamodule
from torch.utils.data import DataLoader


@cache
def configured() -> TabularModel:
    return TabularModel(
        data_config=DataConfig(["y"], ["x"], ["colour"]),
        model_config=CategoryEmbeddingModelConfig(task="regression", layers="8"),
        optimizer_config=OptimizerConfig(),
        trainer_config=TrainerConfig(batch_size=8, progress_bar="none"),
        verbose=False,
    )


def rows(seed: int, size: int) -> pd.DataFrame:
    x = np.random.default_rng(seed).normal(size=size)
    colour = np.array(["red", "green"])[np.arange(size) % 2]
    return pd.DataFrame({"x": x, "colour": colour, "y": 2 * x + (colour == "red")})


class Rows(TabularDatamodule):
    def __init__(self, batch_size: int) -> None:
        config = configured().config.copy()
        config.batch_size = batch_size
        super().__init__(rows(0, 64), config, validation=rows(1, 16), verbose=False)

    def test_dataloader(self) -> DataLoader:
        return self.prepare_inference_dataloader(rows(2, 16))


class Network(CategoryEmbeddingModel):
    def __init__(self) -> None:
        data: Any = Rows(8)
        data.prepare_data()
        data.setup("fit")
        made = configured().prepare_model(data)
        super().__init__(made.hparams, inferred_config=configured().inferred_config)


def answer(network: Network) -> list[float]:
    data = Rows(8)
    data.setup("fit")
    batch = next(iter(data.test_dataloader()))
    return network(batch)["logits"].flatten().tolist()


__all__ = ["Network", "Rows", "answer", "pl"]
