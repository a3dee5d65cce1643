"""NeMo RL as text: where the fix belongs, what it looks like there, and the files it is written to."""
