"""Code that runs on the user's machine and calls AWS: checks, requests, commands for sent jobs."""
