#!/usr/bin/env bash
# Expected: Accuracy(task="multiclass") and MulticlassAccuracy are the same metric with the same defaults.
# True:     the first counts samples (average="micro"), the second averages over classes (average="macro"): three of
#           four samples right are 0.75 and 0.5.
# Source:   torchmetrics 1.9.0 with torch 2.13.0, classification/accuracy.py.
. "$(dirname "$0")/lib/environment.sh"
packages torchmetrics==1.9.0 torch==2.13.0
seen "Accuracy: 0.75" "MulticlassAccuracy: 0.5" <<'PY'
import torch
from torchmetrics import Accuracy
from torchmetrics.classification import MulticlassAccuracy

predicted, label = torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 1])
print("Accuracy:", float(Accuracy(task="multiclass", num_classes=2)(predicted, label)))
print("MulticlassAccuracy:", float(MulticlassAccuracy(num_classes=2)(predicted, label)))
PY
