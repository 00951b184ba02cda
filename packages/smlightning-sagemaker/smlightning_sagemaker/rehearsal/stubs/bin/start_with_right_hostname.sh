#!/bin/sh
# Stub of the image's script of this name, which the forwarding entry of launch/profiles.py starts with the argument `train`.
shift
exec "$REHEARSAL_PYTHON" -m sagemaker_training.cli.train "$@"
