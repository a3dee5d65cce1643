"""What a run's config says about the stall: the YAML as NeMo RL reads it, its settings, and findings."""
