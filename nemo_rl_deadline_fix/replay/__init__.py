"""The story of one rollout and two snapshots, replayed on a virtual clock."""
