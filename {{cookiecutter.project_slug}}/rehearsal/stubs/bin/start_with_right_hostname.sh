#!/bin/sh
# Stub of the image's script of this name, which launch/entry.py starts with the argument `train`.
shift
exec "$REHEARSAL_PYTHON" -m sagemaker_training.cli.train "$@"
