"""What a linear model makes of the example's data: character 1- to 3-grams, the project's own
split.

    make project && .venv/bin/python -m pip install scikit-learn
    .venv/bin/python benchmarks/linear_baseline.py --seed 0

Compare with `python src/train.py --seed 0`: the seed determines the split.
"""

import argparse
import os
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "build" / "language-identification"
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT / "vendor" / "smlightning")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    if not (PROJECT / "src" / "train.py").is_file():
        sys.exit(f"error: {PROJECT} is not there; make project generates it.")

    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import SGDClassifier
    from sklearn.metrics import accuracy_score, f1_score

    from data import Data
    from smlightning.data.store import Rows

    os.chdir(PROJECT)
    data = Data(seed=seed)
    data.prepare_data()
    data.setup()
    train, test = data.splits["train"], data.splits["test"]

    def texts(rows: Rows) -> list[str]:
        spans = zip(rows.column("starts").tolist(), rows.column("lengths").tolist(), strict=True)
        return [
            bytes(rows.arrays["ids"][at : at + length] - 1).decode("utf-8", "ignore")
            for at, length in spans
        ]

    started = time.perf_counter()
    grams = HashingVectorizer(
        analyzer="char_wb", ngram_range=(1, 3), lowercase=False, alternate_sign=False
    )
    model = SGDClassifier(loss="log_loss", alpha=1e-6, max_iter=50, random_state=seed)
    model.fit(grams.transform(texts(train)), train.column("labels"))
    answers = model.predict(grams.transform(texts(test)))
    truth = test.column("labels")
    print(
        f"{len(train)} training texts, {len(test)} test texts, {len(data.labels)} languages: "
        f"accuracy {accuracy_score(truth, answers):.4f}, macro F1 {f1_score(truth, answers, average='macro'):.4f}, "
        f"{time.perf_counter() - started:.1f} s"
    )


if __name__ == "__main__":
    main()
