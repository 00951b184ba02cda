"""Fine-tune a classifier of sentences with the Hugging Face Trainer.

    python train.py --output_dir out --max_steps 20

It has the slips of many public scripts. The recipe in a project's docs/how_to.md has none.
"""

from dataclasses import dataclass, field

from sentences import Sentences, classifier
from transformers import HfArgumentParser, Trainer, TrainingArguments


@dataclass
class DataArguments:
    sentences: int = field(default=256, metadata={"help": "number of sentences"})


def main() -> None:
    parser = HfArgumentParser((DataArguments, TrainingArguments))  # type: ignore[arg-type]
    data, training = parser.parse_args_into_dataclasses()
    trainer = Trainer(classifier(), training, train_dataset=Sentences(data.sentences))
    result = trainer.train()
    print(f"train_loss {result.training_loss:.4f}")
    trainer.save_model()


if __name__ == "__main__":
    main()
