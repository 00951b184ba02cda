"""A sent job: its log, its progress, why it failed, and its model."""
