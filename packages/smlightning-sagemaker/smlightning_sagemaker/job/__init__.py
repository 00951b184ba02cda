"""The job: job.toml, its request (CreateTrainingJob), images and instances, sending, the SDK."""
