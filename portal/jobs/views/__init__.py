"""Pages of jobs: list, submission, one job, queues."""
