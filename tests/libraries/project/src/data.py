"""`Data`: the library's data module with the names of this project's options."""

from typing import Any

from parts import Rows

from options import Options


class Data(Rows):
    def __init__(self, dataset: str = Options.dataset, **options: Any) -> None:
        chosen = Options(dataset=dataset, **options)
        super().__init__(chosen.batch_size)
        self.options = chosen
        self.prepare_data_per_node = True
        self.fingerprint = dataset
