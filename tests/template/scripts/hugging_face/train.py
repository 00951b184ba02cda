"""The Trainer of Hugging Face on a small model without a download."""

import os

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> dict[str, object]:
        words = torch.randint(5, 90, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": index % 2}


def main() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=99, num_hidden_layers=1, **sizes)
    arguments = TrainingArguments(
        output_dir=os.environ["SM_MODEL_DIR"],
        num_train_epochs=2,
        per_device_train_batch_size=8,
        save_strategy="epoch",
        eval_strategy="epoch",
        report_to=[],
    )
    model = BertForSequenceClassification(config)
    trainer = Trainer(model, arguments, train_dataset=Rows(), eval_dataset=Rows())
    trainer.train()
    trainer.save_model(os.environ["SM_MODEL_DIR"])


if __name__ == "__main__":
    main()
