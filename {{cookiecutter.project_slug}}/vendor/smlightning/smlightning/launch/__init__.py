"""What runs on the user's machine and talks to AWS: checks, requests, and jobs that were sent."""
